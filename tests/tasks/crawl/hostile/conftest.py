import importlib.util
import sys
from pathlib import Path

# importlib mode puts no test folder on sys.path; these servers are shared by the modules of this folder.
for _name in ("name_server",):
    _spec = importlib.util.spec_from_file_location(f"hostile_{_name}", Path(__file__).with_name(f"{_name}.py"))
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[f"hostile_{_name}"] = _module
    _spec.loader.exec_module(_module)
