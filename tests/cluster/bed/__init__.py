"""A Kubernetes cluster for tests: its API on loopback, with controllers that run the commands of pods as processes.

    bed = Bed(tmp_path)                     # an API server on a free port of 127.0.0.1
    bed.kube_config()                       # path of a kubeconfig for any client
    bed.install(JobSets(bed))               # one more kind, with its controller
    bed.faults.answer(503, verb="create", path="*/pods", times=2)
    bed.close()

A container is a process of this machine: `python` is this interpreter, SIGTERM is ignored until the program installs a
handler (as for PID 1), host names do not resolve, volumes are not mounted. Everything else is meant to be as
in a cluster; any other difference is a bug of the bed.

How to write a controller: subclass `Controller`, name the `resource` it serves (the API then knows the kind), and
override what it needs. All calls come from one thread, in the order of the changes, so no locks are needed; a call must
not block (`self.bed.later(seconds, function)` runs something afterwards, on the same thread; long work has its own
thread). Read and write objects through `self.store`:

    class Gadgets(Controller):
        resource = Resource("example.org", "v1", "gadgets", "Gadget")
        watches = (PODS,)                                        # also receives changes of these

        def on_create(self, gadget):                             # ADDED
            pod = {"metadata": {"name": ..., "namespace": ..., "ownerReferences": [owner(gadget)]}, "spec": {...}}
            self.store.create(PODS, pod)                         # the scheduler and the kubelet start it
        def on_update(self, gadget, before): ...                 # MODIFIED; also at the start of its deletion
        def on_delete(self, gadget): ...                         # DELETED
        def on_related(self, change): ...                        # any change of a kind in `watches`

        self.status(gadget, phase="Running")                     # merges into .status
        self.store.change(self.resource, namespace, name, edit)  # edit(obj) changes in place

Dependents of an object (`ownerReferences`) are deleted with it, before it with propagationPolicy Foreground. An
exception in a controller is stored and raised by `bed.close()`.
"""

from tests.cluster.bed.controllers import Controller, owner
from tests.cluster.bed.resources import ApiError, Object, Resource
from tests.cluster.bed.server import Bed

__all__ = ["ApiError", "Bed", "Controller", "Object", "Resource", "owner"]
