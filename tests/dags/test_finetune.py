"""The DAG of fine-tuning: of recipes that have examples and a base, with its stages in order and no schedule."""

FINETUNE = """
[examples]
files = ["rows.jsonl"]

[finetune]
base = "one/checkpoint@previous"
"""


def test_a_recipe_with_examples_has_it_and_others_do_not(recipes, dag_bag):
    recipes("one", FINETUNE)
    recipes("two")
    bag = dag_bag()
    assert bag.import_errors == {}
    assert [name for name in bag.dags if name.endswith(".finetune")] == ["one.finetune"]
    dag = bag.dags["one.finetune"]
    assert dag.schedule is None
    assert dag.task_dict["examples"].downstream_task_ids == {"finetune"}
    assert dag.task_dict["finetune"].pool == "gpu"
    dag.params.update({"finetune.base": "one/finetuned@sft", "finetune.loss": "dpo", "finetune.steps": 5})
    dag.params.validate()
