"""The DAG of fine-tuning: for recipes with examples and a base, with its stages in order and no schedule."""

FINETUNE = """
[examples]
files = ["rows.jsonl"]

[finetune]
base = "one/checkpoint@previous"
"""


def test_a_recipe_with_only_fine_tuning_has_no_dag_with_an_asset(recipes, dag_bag):
    recipes("alone", text=f'name = "alone"\n{FINETUNE}')
    bag = dag_bag()
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["alone.finetune", "alone.takedown"]


def test_a_base_from_elsewhere_is_parsed_without_a_network(recipes, dag_bag, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: 1 / 0)
    text = FINETUNE.replace("one/checkpoint@previous", "hf://ink/pot@main")
    recipes("alone", text=f'name = "alone"\n{text}')
    bag = dag_bag()
    assert bag.import_errors == {}
    dag = bag.dags["alone.finetune"]
    dag.params.update({"finetune.base": "hf://ink/pot@v2"})
    dag.params.validate()


def test_only_a_recipe_with_examples_has_the_finetune_dag(recipes, dag_bag):
    recipes("one", FINETUNE)
    recipes("two")
    bag = dag_bag()
    assert bag.import_errors == {}
    assert [name for name in bag.dags if name.endswith(".finetune")] == ["one.finetune"]
    dag = bag.dags["one.finetune"]
    assert dag.schedule is None
    order = ["examples", "finetune", "evaluate_tuned", "register_tuned"]
    assert list(dag.task_dict) == order
    assert [dag.task_dict[name].downstream_task_ids for name in order] == [{name} for name in order[1:]] + [set()]
    assert [dag.task_dict[name].pool == "gpu" for name in order] == [False, True, True, False]
    dag.params.update({"finetune.base": "one/finetuned@sft", "finetune.loss": "dpo", "finetune.steps": 5})
    dag.params.validate()


def test_with_promotion_a_person_approves_the_champion_of_fine_tuned_models(recipes, dag_bag):
    promoting = f"{FINETUNE}\n[promote_tuned]\nenabled = true\n"
    recipes("asking", promoting + "[place]\nask_human = true\n")
    recipes("alone", promoting)
    bag = dag_bag()
    assert bag.import_errors == {}
    asking, alone = (bag.dags[f"{name}.finetune"].task_dict for name in ("asking", "alone"))
    assert asking["promote_tuned"].upstream_task_ids == {"compare_tuned", "approve"}
    assert (alone["promote_tuned"].upstream_task_ids, "approve" in alone) == ({"compare_tuned"}, False)
    assert alone["compare_tuned"].upstream_task_ids == {"register_tuned"}
    assert [alone[name].pool == "gpu" for name in ("compare_tuned", "promote_tuned")] == [True, False]
