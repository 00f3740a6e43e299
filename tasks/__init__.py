"""Sluice's pipeline: stages that meet in artifacts on disk.

    seeds -> generate -> fetch[p] -> update -> publish ................ warc
    warc, files -> extract -> annotate -> dedup -> consolidate ........ documents
    documents -> tokenizer -> encode -> pack .......................... shards, plan
    plan -> arms -> canary[arm x seed] -> decide ...................... mixture
    shards, plan, mixture -> train -> evaluate -> register ............ checkpoint, scores

The spine under the stages: recipe (what and where), artifact (a committed result and its record), stage (part-wise
commit), engine (where parts run), store (bytes), ledger (what was made from what), tracking (MLflow).
"""
