import importlib.util
import sys
from pathlib import Path

# importlib mode puts no test folder on sys.path; the site is shared by several modules of this folder.
_spec = importlib.util.spec_from_file_location("crawl_site", Path(__file__).with_name("site.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["crawl_site"] = _module
_spec.loader.exec_module(_module)
