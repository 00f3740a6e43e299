from tests.cluster.test_jobset import *
def test_x(run, cluster, queue, saved):
    def preempt() -> None:
        saved()
        [jobset] = jobsets(cluster)
        cluster.kueue.preempt(jobset["metadata"]["name"], cluster.namespace)
    with meanwhile(preempt):
        ended = run("train", steps=STEPS, queue=queue, **GANG)
    open("/tmp/pods/said.txt","w").write(ended.said)
    print([(l.name, l.phases) for l in cluster.history.lives()])
