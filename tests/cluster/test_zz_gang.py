"""scratch"""



from tests.cluster.runs import meanwhile

STEPS = 1500


def test_gang_ok(run, cluster):
    ended = run("train", steps=60, operator="JobSetOperator", nodes=2)
    print(ended.said[-6000:])
    assert ended.state == "success"


def test_gang_loses_pod(run, cluster, store):
    def disturb():
        cluster.pod()
        cluster.until(lambda: len(list(store.glob("test/checkpoint/dev/.scratch/*/checkpoints/step-*/state.json"))) > 1)
        pods = [p for p in cluster.pods() if p.status.phase == "Running"]
        cluster.kill_pod(pods[-1].metadata.name)

    with meanwhile(disturb):
        ended = run("train", steps=STEPS, operator="JobSetOperator", nodes=2)
    print(ended.said[-9000:])
    assert ended.state == "success"


def test_gang_evicted(run, cluster, store):
    def disturb():
        cluster.pod()
        cluster.until(lambda: len(list(store.glob("test/checkpoint/dev/.scratch/*/checkpoints/step-*/state.json"))) > 1)
        pods = [p for p in cluster.pods() if p.status.phase == "Running"]
        cluster.evict(pods[-1].metadata.name)

    with meanwhile(disturb):
        ended = run("train", steps=STEPS, operator="JobSetOperator", nodes=2)
    print(ended.said[-9000:])
    assert ended.state == "success"
