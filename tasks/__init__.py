"""Sluice's pipeline: stages that read and write artifacts of a store.

    seeds -> generate -> fetch[p] -> update -> publish ................ warc
    warc, files -> extract -> annotate -> dedup -> consolidate ........ documents
    documents -> tokenizer -> encode -> pack .......................... shards, plan
    plan -> arms -> canary[arm x seed] -> decide ...................... mixture
    shards, plan, mixture -> train -> evaluate -> register ............ checkpoint, scores

Beneath the stages: recipe (settings and place), artifact (a committed result and its record), stage (part-wise commit),
engine (executor of parts), store (files), ledger (graph of artifacts), tracking (MLflow).
"""
