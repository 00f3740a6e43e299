"""OpenLineage events of stages: datasets, schemas, row counts and reasons, from the record of the artifact.

Reads the record of the artifact that a task has made, and the footer of one Parquet file of it and of each input.
Airflow's OpenLineage provider calls `get_openlineage_facets_on_complete` when a task has succeeded, for each mapped
task too; the packages of OpenLineage are imported then, so Sluice does not need them.

A dataset is an artifact without its version: namespace `s3://bucket` or `file`, and the path of its folder. The facet
`version` has the version, of inputs and outputs, so the events have the same edges as the ledger.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from operators.connections import use_store
from tasks.run.recipe import find_recipe

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact

_MASKED = frozenset({"text", "title", "metadata"})
"""Columns of documents in which `consolidate` masks personal data."""


class StageLineage:
    """The OpenLineage method of an operator that has `recipe`, and the JSON of a stage's result as `result`."""

    recipe: str
    result: dict[str, Any]

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Returns the provider's OperatorLineage; None if the task has made no artifact."""
        if not self.result.get("address"):
            return None
        from airflow.providers.openlineage.extractors import OperatorLineage

        from tasks.core.artifact import Artifact, ArtifactId
        from tasks.run.runner import open_store

        recipe = find_recipe(self.recipe)
        use_store(recipe)
        artifact = Artifact.open_at(open_store(recipe), ArtifactId.parse(self.result["address"]))
        made = [artifact, *_groups_made_with(artifact)]
        inputs = _read_by(made)
        return OperatorLineage(
            inputs=[_input(one) for one in inputs],
            outputs=[_output(one, inputs) for one in made],
            run_facets={"sluice_stage": _run_facet(recipe.name, artifact)},
        )


def _groups_made_with(artifact: "Artifact") -> "list[Artifact]":
    """Returns the groups of measurements that a stage has made for its artifact; others are of earlier versions."""
    from tasks.formats.documents.groups import groups_of

    groups = groups_of(artifact).values()
    return [group for group in groups if group.address.version == artifact.address.version]


def _read_by(made: "list[Artifact]") -> "list[Artifact]":
    """Returns the artifacts that a stage has read; other inputs are files, and code of extensions."""
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.core.version_index import dependencies

    own = {str(one.address) for one in made}
    addresses = dict.fromkeys(address for one in made for address in dependencies(one.record))
    read = [ArtifactId.parse(one) for one in addresses if "@" in one and one not in own]
    return [Artifact.open_at(made[0].store, one) for one in read]


def _input(artifact: "Artifact") -> Any:
    from openlineage.client.event_v2 import InputDataset

    return InputDataset(*_dataset_name(artifact), facets=_facets(artifact))


def _output(artifact: "Artifact", inputs: list["Artifact"]) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import (
        column_lineage_dataset,
        data_quality_metrics_dataset,
        output_statistics_output_dataset,
    )

    record, facets = artifact.record, _facets(artifact)
    counts = {
        "rowCount": record.rows_out,
        "fileCount": artifact.total().files,
    }
    facets["dataQualityMetrics"] = data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics={}, bytes=record.bytes, **counts
    )
    if fields := dict(_derived(artifact, inputs)):
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(size=record.bytes, **counts)
    return OutputDataset(*_dataset_name(artifact), facets=facets, outputFacets={"outputStatistics": statistics})


def _facets(artifact: "Artifact") -> dict[str, Any]:
    """Returns the facets that inputs and outputs have: version, store, and the schema of the rows."""
    from openlineage.client.facet_v2 import dataset_version_dataset, datasource_dataset, schema_dataset

    root = artifact.store.root
    facets: dict[str, Any] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(artifact.address.version),
        "dataSource": datasource_dataset.DatasourceDatasetFacet(
            name=_dataset_name(artifact)[0], uri=root if "://" in root else f"file://{root}"
        ),
    }
    schema = _schema_of(artifact)
    if schema is not None:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=one.name, type=str(one.type)) for one in schema]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    return facets


def _dataset_name(artifact: "Artifact") -> tuple[str, str]:
    """Returns namespace and name of an artifact, by the naming rules of OpenLineage."""
    scheme, separator, path = artifact.store.url(artifact.address.name).rpartition("://")
    if not separator or scheme == "file":
        return "file", path
    authority, _, key = path.partition("/")
    return f"{scheme}://{authority}", key


def _schema_of(artifact: "Artifact") -> "pa.Schema | None":
    """Returns the schema of the rows of an artifact; None if they are not in Parquet files that can be read.

    Of several folders, that of its rows is the largest of those whose files have as many rows as the record counts;
    others are indexes of these rows. One file of each is looked at.
    """
    from tasks.core.errors import InputError
    from tasks.core.parquet import schema

    folders = artifact.parts.folders()
    complete = [name for name, total in folders.items() if total.rows == artifact.record.rows_out]
    try:
        for name in sorted(complete, key=lambda name: -folders[name].bytes):
            path = next(artifact.parts.paths((name,)), "")
            if path.endswith(".parquet"):
                with artifact.open(path) as opened:
                    return schema(opened)
    except InputError:  # the files were removed, or a manifest is gone
        pass
    return None


def _derived(artifact: "Artifact", inputs: list["Artifact"]) -> Iterator[tuple[str, Any]]:
    """Yields the columns of `documents` that are those of `extracted`; of other stages nothing is stated."""
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    if artifact.record.stage != "consolidate":
        return
    (extracted,) = (one for one in inputs if one.record.stage == "extract")
    schemas = [schema for schema in (_schema_of(artifact), _schema_of(extracted)) if schema is not None]
    if len(schemas) == 2:
        for name in sorted(set(schemas[0].names) & set(schemas[1].names)):
            masked = name in _MASKED
            change = lineage.Transformation(
                type="DIRECT", subtype="TRANSFORMATION" if masked else "IDENTITY", masking=masked
            )
            source = lineage.InputField(*_dataset_name(extracted), name, [change])
            yield name, lineage.Fields(inputFields=[source])


def _run_facet(recipe: str, artifact: "Artifact") -> Any:
    """Returns a facet of the run: recipe and stage, the fingerprint of the result, and the rows by outcome."""
    from openlineage.client.facet_v2 import RunFacet

    record = artifact.record
    return RunFacet().with_additional_properties(
        recipe=recipe,
        stage=record.stage,
        member=record.member,
        version=artifact.address.version,
        fingerprint=record.fingerprint,
        content=record.content,
        adoptedFrom=record.adopted_from,
        rowsIn=record.rows_in,
        rowsOut=record.rows_out,
        rejected=dict(record.rejected),
    )
