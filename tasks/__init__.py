"""The Sluice pipeline: stages that read artifacts from a store and write new ones.

    seeds -> generate -> fetch[p] -> update -> publish ................ warc
    warc, files -> extract -> annotate -> dedup -> consolidate ........ documents
    documents -> tokenizer -> encode -> pack .......................... shards, plan
    plan -> (arms -> canary[arm x seed])[round] -> finalist -> decide .. mixture
    shards, plan, mixture -> train -> evaluate -> register ............ checkpoint, scores

Below the stages: recipe (settings and place), artifact (a committed result and its record), stage (commits by part),
engine (executor of parts), store (files), ledger (graph of artifacts), tracking (MLflow).
"""
