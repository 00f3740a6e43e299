"""One crawl cycle, stage by stage, as the catalogue binds them. Not a test module."""


class Cycle:
    """The artifacts of one cycle.

    Attributes:
        seeds, ranks, fetchlists, segments, rendered, crawldb, warc: artifacts; lists by partition where mapped.
    """

    def __init__(self, run_stage, config, version="dev", previous=None):
        self._run, self.config, self.version, self.previous = run_stage, config, version, previous
        earlier = {"crawldb": previous.crawldb, "previous": previous.ranks} if previous else {}
        self.seeds = self.stage("inject")
        self.ranks = self.stage("rank", earlier)
        self.members = self.seeds.record.members
        self.fetchlists = [
            self.stage("generate", {"seeds": self.seeds, "ranks": self.ranks, **self._before(index)}, member)
            for index, member in enumerate(self.members)
        ]
        self.segments = self.rendered = self.crawldb = self.warc = None

    def finish(self):
        self.fetch_all()
        self.rendered = []
        self.crawldb = [self.update(index) for index in range(len(self.members))]
        inputs = {"segments": self.segments, "rendered": self.rendered, "crawldb": self.crawldb}
        self.warc = self.stage("publish", inputs)
        return self

    def fetch_all(self):
        self.segments = [self.stage("fetch", self.fetch_inputs(i), name) for i, name in enumerate(self.members)]

    def fetch_inputs(self, index):
        """What the fetch of one partition reads."""
        return {
            "seeds": self.seeds,
            "fetchlist": self.fetchlists[index],
            "fetchlists": self.fetchlists,
            **self._before(index),
        }

    def update(self, index):
        inputs = {
            "seeds": self.seeds,
            "ranks": self.ranks,
            "fetchlist": self.fetchlists[index],
            "segments": self.segments,
            "rendered": self.rendered,
            **self._before(index),
        }
        return self.stage("update", inputs, self.members[index])

    def stage(self, name, inputs=None, member="", **options):
        return self._run(
            f"tasks.stages.crawl.{name}", self.config, inputs or {}, member=member, version=self.version, **options
        )

    def urls(self):
        """Returns the rows of the crawl DB by URL."""
        return {row["url"]: row for one in self.crawldb for row in one.table("urls.parquet").to_pylist()}

    def log(self):
        """Returns the rows of the fetch logs by URL."""
        rows = [row for one in self.segments for path in one.files("log/") for row in one.table(path).to_pylist()]
        return {row["url"]: row for row in rows}

    def _before(self, index):
        return {"previous": self.previous.crawldb[index]} if self.previous else {}
