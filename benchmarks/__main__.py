"""Lists all benchmarks with purpose, command, and the main figure of the last result.

    python -m benchmarks [--readme]

Reads `benchmarks/results/*.json`. `--readme` writes the list as a table to `benchmarks/README.md`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness import KEPT, parser
from tasks.core.pages import table

README = Path(__file__).with_name("README.md")
INTRODUCTION = """\
# Benchmarks

The benchmarks behind the figures in README, docs and docs/log.md. `python -m benchmarks --readme` generates this table
from `results/*.json`: run it after a benchmark.

- `python -m benchmarks.NAME --help` describes the measurement and its requirements. Corpora are your own
  folders; peers are installed once from PyPI, into environments below `.sluice/benchmarks`.
- Contenders run in turn, round by round, on the same input, so that load on the machine affects all of them alike.
  Ratios are more reliable than absolute figures, which are from shared two-core machines.
- A run replaces its file in `results/`; with `SLUICE_RESULTS=/some/folder` it writes there instead.
- A benchmark that no document quotes is deleted.

"""


@dataclass(frozen=True)
class Benchmark:
    """A row of the table.

    Attributes:
        name: of its result, `results/<name>.json`.
        command: module and arguments after `python -m benchmarks.`.
        purpose: one line.
        figure: returns the main figure of a result; None if the benchmark only prints.
    """

    name: str
    command: str
    purpose: str
    figure: Callable[[dict[str, Any]], str] | None

    @property
    def result(self) -> dict[str, Any] | None:
        """The last result, or None."""
        path = KEPT / f"{self.name}.json"
        return json.loads(path.read_text()) if self.figure and path.exists() else None


def _f1(row: dict[str, Any]) -> str:
    return f"{row['segments']['f1']:.3f}"


def _limits(result: dict[str, Any]) -> str:
    papers = result["kinds"]["pdf, papers of packages"]
    general, own = (papers[which]["dropped"] for which in ("general", "own"))
    return f"{general} of {papers['texts']} papers dropped by general limits, {own} by those of PDF"


def _lm_eval(result: dict[str, Any]) -> str:
    tasks = result["lm_eval_hf"].values()
    apart = max(task["largest_difference_of_log_p"] for task in tasks if "largest_difference_of_log_p" in task)
    texts = next(task for task in tasks if "equal_texts" in task)
    return f"log-likelihoods within {apart:.0e}, {texts['equal_texts']} of {texts['items']} texts equal"


def _imported_model(result: dict[str, Any]) -> str:
    (row,) = (row for row in result["tuned"]["rows"] if row["name"] == "responses")
    texts = result["texts"]
    return (
        f"{texts['equal_answers']} of {texts['answers']} greedy answers equal; held-out chunks {row['first']:.2f} to "
        f"{row['second']:.2f} bits per byte in {result['tuned']['steps']} steps"
    )


def _explain(result: dict[str, Any]) -> str:
    size = result["sizes"][len(result["sizes"]) // 2]
    tokens = f"{size['tokens'] / 1e6:,.0f} M tokens"
    return f"over {tokens}: {size['warm']['seconds']:.2f} s warm, {size['cold']['seconds']:.1f} s from disk"


def _trace(result: dict[str, Any]) -> str:
    folder, remote = (
        max(one["seconds"] for one in result[where].values()) for where in ("folder", "s3, 10 ms per request")
    )
    return f"{result['captures'] / 1e6:.0f} M captures: at most {folder:.1f} s from a folder, {remote:.1f} s from S3"


def _generation(result: dict[str, Any]) -> str:
    ratios = [run["ratio"] for runs in result["parameters"].values() for run in runs]
    return f"{min(ratios):.0f} to {max(ratios):.0f} times less CPU"


def _train_gpu(result: dict[str, Any]) -> str:
    best = max((one for one in result["configurations"] if one.get("mfu")), key=lambda one: float(one["mfu"]))
    return f"{best['size']} in {best['precision']}: {best['tokens_per_s']:,} tokens/s, MFU {best['mfu']:.2f}"


def _recipes_parse(result: dict[str, Any]) -> str:
    return ", ".join(f"{row['recipes']} recipes: {row['parse_s']:.1f} CPU-seconds" for row in result["rows"])


def _pages(result: dict[str, Any]) -> str:
    seconds = sorted(one["cpu_s"] for one in result["requests"].values())
    middle = seconds[len(seconds) // 2]
    return f"{len(seconds)} requests: half take at most {middle:.2f} CPU-seconds, the longest {seconds[-1]:.2f}"


def _scale(result: dict[str, Any]) -> str:
    rows = [row for rows in result["curves"].values() for row in rows]
    return f"{sum(row['within_bound'] for row in rows)} of {len(rows)} costs grow with an exponent of at most 1.05"


def _fake_ranks(result: dict[str, Any]) -> str:
    ranks = [one for case in ("70b", "405b") for name, one in result[case].items() if name.startswith("rank")]
    ratios = [one["planned / counted"] for one in ranks]
    peaks = [one["counted"]["peak"] / 2**30 for one in ranks]
    return f"{min(peaks):.1f} to {max(peaks):.1f} GiB; planned / counted {min(ratios):.2f} to {max(ratios):.2f}"


BENCHMARKS = (
    Benchmark(
        "crawl",
        "crawl fetch",
        "The crawler against Scrapy and bare aiohttp on the same web; good hosts next to slow and silent ones",
        lambda r: (
            f"{r['pages_per_cpu_second']['sluice']:.0f} pages per CPU-second, "
            f"{r['ratio']['sluice/scrapy']['median']:.1f} x Scrapy"
        ),
    ),
    Benchmark(
        "warc_writer",
        "crawl warc",
        "The cost of writing a capture, as gzip and as zstd",
        lambda r: (
            f"zstd {r['came as gzip']['zstd/gzip']} of gzip's CPU for bodies that arrive compressed, "
            f"{r['came plain']['zstd/gzip']} for plain ones"
        ),
    ),
    Benchmark(
        "crawldb",
        "crawldb --folder FOLDER",
        "CPU and memory of generate and update at three sizes of the crawl DB",
        lambda r: (
            f"{r['sizes'][-1]['generate']['cpu_s']:.0f} and {r['sizes'][-1]['update']['cpu_s']:.0f} CPU-seconds "
            f"at {r['sizes'][-1]['urls'] / 1e6:.0f} M URLs"
        ),
    ),
    Benchmark(
        "one_process",
        "one_process",
        "Memory and CPU for a row of what one process does for a segment, a crawl or a part",
        lambda r: ", ".join(f"{r[what]['bytes']} bytes a row of {what}" for what in ("links", "edges", "tombstones")),
    ),
    Benchmark(
        "crawl_plan",
        "crawl_plan --pages 10e9 --days 30",
        "Resources of a large crawl: arithmetic on measured costs, and a model of hosts",
        None,
    ),
    Benchmark(
        "page_metadata",
        "page_metadata --segments FOLDER [--kinds FOLDER]",
        "Titles, authors and dates of pages against the manual annotation, beside trafilatura",
        lambda r: ", ".join(
            f"{r['annotated']['sluice'][name]['right']} of {r['annotated']['sluice'][name]['pages']} {name}s"
            for name in ("title", "author", "date")
        ),
    ),
    Benchmark(
        "text_forms",
        "text_forms --gold FOLDER --segments FOLDER --manuals FOLDER",
        "Plain text or Markdown of the same pages: tokens, decisions of Gopher's filters, small models trained on each",
        lambda found: (
            f"Markdown has {found['markdown_per_plain']['pages'] - 1:.1%} more tokens; bits per byte of prose "
            + ", ".join(f"{mean(found['canary'][form]['prose']):.3f} {form}" for form in ("plain", "markdown"))
        ),
    ),
    Benchmark(
        "extraction",
        "extraction --gold FOLDER --segments FOLDER [--kinds FOLDER] [--manuals FOLDER] [--folds FOLDER]",
        "Main text of annotated pages by kind, and tables of manuals, against resiliparse, trafilatura and magic-html",
        lambda r: (
            f"segments F1 {_f1(r['extractors']['sluice blocks, unseen hosts'])}, "
            f"trafilatura {_f1(r['extractors']['trafilatura default'])}"
        ),
    ),
    Benchmark(
        "train_blocks",
        "train_blocks --gold FOLDER --segments FOLDER --kinds FOLDER [--folds FOLDER] [--write]",
        "Trains the trees of the extractor `blocks`, and scores them on unseen hosts",
        lambda r: f"segments F1 {_f1(r['unseen hosts, nested'])} on unseen hosts, {r['pages']} pages",
    ),
    Benchmark(
        "refine",
        "refine [--archived FOLDER ...] [--texts FOLDER] [--careful]",
        "Extract and filters against datatrove: speed on the same pages, verdicts on the same texts",
        lambda r: (
            f"{r['archived']['ratio']['default']} x datatrove's pages per CPU-second; verdicts equal on "
            f"{min(r['verdicts']['equal'].values()):.2%} of {r['verdicts']['texts']:,} texts"
        ),
    ),
    Benchmark(
        "annotators",
        "filters speed --texts FOLDER",
        "Each annotator against the simplest implementation of its task, and against datatrove's filters",
        lambda r: (
            f"words split at {r['mb_per_s']['words, met before']:.0f} MB per CPU-second; "
            f"all rules {r['ratio']['all rules x datatrove']:.0f} x datatrove"
        ),
    ),
    Benchmark(
        "limits",
        "filters limits --data FOLDER [--pdf FOLDER]",
        "Good texts, PDF and code that the limits of filters drop",
        _limits,
    ),
    Benchmark(
        "classifiers",
        "classifiers scores --data FOLDER",
        "Scores of quality and toxicity against human labels",
        lambda r: (
            f"AUC {r['quality']['signals_on_votes_cross_validated']['auc']:.2f} for quality, "
            f"{r['toxicity']['toxic_or_neither']['auc']:.3f} for toxicity"
        ),
    ),
    Benchmark(
        "languages",
        "classifiers languages --data FOLDER [--model FILE]",
        "Accuracy of the language model by language",
        lambda r: f"{r['accuracy']:.0%} of {r['sentences']:,} sentences in {r['languages']} languages",
    ),
    Benchmark(
        "canaries",
        "canaries",
        "Simulated canary cycles: equal arms of unequal noise, and one better arm, against a pooled variance",
        lambda r: (
            f"equal arms: at most {r['largest']['confirmed']} % of cycles promote one, "
            f"{r['largest']['pooled']} % with a pooled variance"
        ),
    ),
    Benchmark(
        "responses",
        "responses make --data FOLDER",
        "Small real runs on 60 mixtures of six domains, kept as a data set",
        lambda r: f"{len(r['runs'])} runs of {r['recipe']['steps']} steps",
    ),
    Benchmark(
        "response_forms",
        "responses forms",
        "Forms of the response, fitted to a part of these runs, rank the other mixtures; against boosted trees",
        lambda r: (
            f"rank correlation {r['held_out'][-1]['chosen']:.2f} after {r['held_out'][-1]['mixtures']} mixtures, "
            f"boosted trees {r['held_out'][-1]['boosting']:.2f}"
        ),
    ),
    Benchmark(
        "continual",
        "continual months --data FOLDER",
        "Six months of real text by continual training, against training from nothing on all of them",
        lambda r: (
            f"{r['continual']['mean']:.3f} bits per byte, {r['without_replay']['mean']:.3f} without replay, "
            f"{r['from_nothing']['mean']:.3f} from nothing, at "
            f"{r['steps']['month 6'] / r['steps']['month 6 from nothing']:.2f} of the steps"
        ),
    ),
    Benchmark(
        "continual_settings",
        "continual settings --data FOLDER",
        "The same months with other peaks, first checkpoints and replay",
        lambda r: (
            "; ".join(f"{row['settings']} {row['all']['mean']:.3f}" for row in r["rows"])
            + " bits per byte, three seeds"
        ),
    ),
    Benchmark(
        "month_costs",
        "continual costs",
        "A month with 5 % new pages after a first one with 20,000: CPU-seconds of the stages from crawl to pack",
        lambda r: f"{r['cost']:.2f} of the first month's",
    ),
    Benchmark(
        "perplexity",
        "perplexity --data FOLDER [--quality FILE]",
        "N-gram perplexity against KenLM, and its separation of prose from noise",
        lambda r: (
            f"{r['speed']['megabytes_per_cpu_second']['sluice']:.0f} MB per CPU-second, "
            f"{r['speed']['ratio']['sluice/kenlm']:.1f} x KenLM"
        ),
    ),
    Benchmark(
        "pii",
        "pii [--data FOLDER] [--credits FILE] [--documents FOLDER ...]",
        "Personal data in generated sentences and in real texts",
        lambda r: f"{r['unseen']['documents']['whole']} of {r['unseen']['documents']['all']} addresses in real texts",
    ),
    Benchmark(
        "pii_world",
        "pii_world [--kinds FOLDER] [--texts FILE ...]",
        "Telephone numbers, national ids and addresses of 63 countries in generated sentences; matches on real pages",
        lambda r: (
            f"found exactly: {r['generated']['national']['exact']:.1%} of national numbers, "
            f"{r['generated']['id']['exact']:.1%} of ids; {r['generated']['wrong']['any']:.1%} of wrong ids"
        ),
    ),
    Benchmark(
        "pdf",
        "pdf --data FOLDER",
        "The PDF parser against PDFium, pypdf, pdfplumber and pdf_oxide",
        lambda r: (
            f"words F1 {r['contenders']['sluice']['real']['f1']:.4f}; order of words in columns drawn by rows "
            f"{r['contenders']['sluice']['2 columns, drawn by rows']['order']:.3f}"
        ),
    ),
    Benchmark(
        "ocr",
        "ocr --data FOLDER --font FILE",
        "OCR of drawn pages, clean and damaged, in Latin script and Chinese",
        lambda r: (
            f"recall {r['conditions']['clean 200']['Latin']['recall']:.3f} and precision "
            f"{r['conditions']['clean 200']['Latin']['precision']:.3f} of words, Chinese letters "
            f"{r['conditions']['clean 200']['Chinese']['recall']:.3f}, clean at 200 dots per inch; "
            f"{r['conditions']['clean 200']['Latin']['cpu_s_per_page']:.0f} CPU-seconds a page"
        ),
    ),
    Benchmark(
        "pdf_paragraphs",
        "pdf_paragraphs --packages FOLDER",
        "Paragraph breaks of PDF files against their TeX or HTML source",
        lambda r: (
            f"F1 of breaks {r['twelve']['mean_f1']:.3f} on twelve documents, {r['unseen']['mean_f1']:.3f} on six "
            "held-out ones"
        ),
    ),
    Benchmark(
        "dedup",
        "dedup peers [--texts FILE.jsonl.zst ...]",
        "Near dedup as a whole against datatrove's four MinHash stages",
        lambda r: f"{r['ratio']['sluice/datatrove']} x datatrove on {r['texts']:,} texts",
    ),
    Benchmark(
        "dedup_scale",
        "dedup scale TEXTS.jsonl.zst ...",
        "Time and memory of near dedup at several numbers of documents",
        lambda r: (
            f"CPU per document at {r['runs'][-1]['documents'] / 1e6:.0f} M is {r['runs'][-1]['cost_ratio']} of "
            f"that at {r['runs'][0]['documents'] / 1e6:.1f} M; {r['runs'][-1]['all_processes_mb'] / 1e3:.1f} GB"
        ),
    ),
    Benchmark(
        "dedup_cycles",
        "dedup cycles TEXTS.jsonl.zst ...",
        "A version with few new documents and the dedup index, against one with all documents",
        lambda r: (
            f"{r['share']:.0%} new documents cost {min(one['cost'] for one in r['runs']):.2f} to "
            f"{max(one['cost'] for one in r['runs']):.2f} of a full version"
        ),
    ),
    Benchmark(
        "dedup_recall",
        "dedup recall TEXTS.jsonl.zst ... [--gold FOLDER]",
        "Recall of near dedup on planted pairs against the theory, and on real pairs",
        lambda r: (
            f"{r['gold']['recall']:.2%} of {r['gold']['true_pairs']:,} real pairs, precision "
            f"{r['gold']['precision']:.2f}"
        ),
    ),
    Benchmark(
        "encode",
        "encode [--texts FILE.jsonl.zst ...]",
        "The stage encode against its bare encoder and datatrove's tokenizer stage",
        lambda r: (
            f"{r['megabytes_per_cpu_second']['stage']:.1f} MB per CPU-second, "
            f"{r['ratio']['stage/datatrove']} x datatrove"
        ),
    ),
    Benchmark(
        "control_data",
        "control_data",
        "What a rank of 2,048 reads and holds before its first batch, up to 15 T tokens",
        lambda r: (
            f"{r['sizes'][-1]['grown_bytes'] / 1e6:.0f} MB of memory, {r['sizes'][-1]['read_bytes'] / 1e6:.1f} MB in "
            f"{r['sizes'][-1]['requests']} requests"
        ),
    ),
    Benchmark(
        "read_order",
        "read_order",
        "Bytes fetched by the order of reading, and mixing, beside a permutation of single sequences",
        lambda r: ", ".join(
            f"{method} {cells['before']:.1f} to {cells['now']:.2f} bytes per byte used"
            for method, row in r["reads"].items()
            for cells in [row["fetched_per_byte_used"]["one source, 1 nodes"]]
        ),
    ),
    Benchmark(
        "loader",
        "loader [--tokens 64] [--without-peers]",
        "The token loader from disk and from S3, against mosaicml-streaming and litdata",
        lambda r: (
            f"{r['million_tokens_local']['0 threads']['per_cpu_s']:.0f} M tokens per CPU-second from disk, "
            f"{r['million_tokens_cold_s3']['cached']['per_cpu_s']:.0f} M from the cache of S3"
        ),
    ),
    Benchmark(
        "explain",
        "spans explain --store FOLDER [--tokens 100_000_000]",
        "The index of `explain`: time, size, and lookups of texts of 200 tokens",
        _explain,
    ),
    Benchmark(
        "repeats",
        "spans repeats TEXTS.jsonl.zst ...",
        "CPU and memory of `repeats` against those of `spans`, and repeats in real text",
        lambda r: (
            f"{r['runs'][0]['found']['repeated_share']:.1%} of {r['runs'][0]['found']['tokens'] / 1e6:.1f} M "
            f"tokens in repeats, {r['runs'][0]['cpu_repeats_over_spans']:.1f} x the CPU of `spans`"
        ),
    ),
    Benchmark(
        "pages",
        "pages --folder FOLDER --run STORE",
        "Pages in Airflow with 1,000 versions and 10 million documents: CPU-seconds of each, memory of the plugin",
        _pages,
    ),
    Benchmark(
        "trace",
        "trace --store FOLDER [--documents 10000000]",
        "Traces in a corpus of 10 M captures, from a folder and from S3",
        _trace,
    ),
    Benchmark(
        "exports",
        "exports tokens",
        "Token exports read back by the readers of other trainers",
        lambda r: (
            f"{sum(one['equal'] for one in r['formats'].values())} of {len(r['formats'])} formats equal, "
            f"{r['formats']['megatron']['documents']:,} documents each"
        ),
    ),
    Benchmark(
        "llama_cpp",
        "exports gguf MODEL",
        "An exported model in llama.cpp against `transformers`: greedy texts",
        lambda r: (
            f"{sum(one['same'] == one['written'] for one in r['prompts'])} of {len(r['prompts'])} texts of "
            f"{r['tokens']} tokens equal"
        ),
    ),
    Benchmark(
        "lm_eval",
        "exports lm_eval MODEL EVALS",
        "Scores of tasks against those of lm-eval and its own model class",
        _lm_eval,
    ),
    Benchmark(
        "imported_model",
        "imported_model EVALS",
        "SmolLM2-135M-Instruct from PyPI: import, answers, scores beside lm-eval, and LoRA on PDF manuals",
        _imported_model,
    ),
    Benchmark(
        "generation",
        "trainer generation",
        "Generation with a cache of keys and values, against reading the whole sequence for every token",
        _generation,
    ),
    Benchmark(
        "optimizers",
        "trainer optimizers [--steps 300]",
        "Muon and AdamW at equal steps, and compressed gradients",
        lambda r: f"held-out loss of Muon {r['muon_over_adamw']:.3f} of AdamW's",
    ),
    Benchmark(
        "width_sweep",
        "width_sweep [--steps 60]",
        "Best learning rate of three widths, with the standard parametrization and with muP",
        lambda r: (
            f"from 16 to 96 wide it moves by {r['standard']['best_moves_by']:g} without and "
            f"{r['mup']['best_moves_by']:g} with muP"
        ),
    ),
    Benchmark(
        "saving",
        "trainer saving",
        "Training steps while a checkpoint is written in the background",
        lambda r: f"the call takes {r['call_s']:.2f} s, steps {r['share_of_window']:.1%} longer until it is on disk",
    ),
    Benchmark(
        "fake_ranks",
        "fake_ranks",
        "Memory and collectives of ranks of 70 B on 2,048 GPUs and 405 B on 16,384, counted without them",
        _fake_ranks,
    ),
    Benchmark(
        "train_gpu",
        "train_gpu [--budget SECONDS] [--tiny]",
        "Kernels and training steps on a GPU: parity, tokens/s, MFU",
        _train_gpu,
    ),
    Benchmark(
        "language_filters",
        "languages measure --reference FOLDER --data FOLDER",
        "Good text and noise of many languages that the default filters drop, with the shipped limits",
        lambda r: (
            f"of good text {r['summary']['dropped']:.1%} in {r['summary']['languages']} languages, of noise"
            f" {r['summary']['noise']:.1%}"
        ),
    ),
    Benchmark(
        "splits",
        "splits --data FOLDER --packages FOLDER",
        "Splits of the tokenizer: pieces per word and tokens by language, training and encoding speed",
        lambda r: (
            f"at most {r['most_pieces_per_word_spaced']['gpt2']:.1f} pieces per word by gpt2,"
            f" {r['most_pieces_per_word_spaced']['llama3']:.2f} by llama3"
        ),
    ),
    Benchmark(
        "splits_models",
        "splits --data FOLDER --packages FOLDER --steps 400",
        "Bits per byte of small models on twelve languages, by split of the tokenizer",
        lambda r: ", ".join(
            f"{language} {bits['gpt2'][language]:.2f} by gpt2, {bits['llama3'][language]:.2f} by llama3"
            for bits in [r["bits_per_byte"]]
            for language in ("ta", "de")
        ),
    ),
    Benchmark(
        "words",
        "words --langid FOLDER --kinds FOLDER",
        "Words of scripts without spaces: speed by language, agreement with the tokenizers of FineWeb2",
        lambda r: ", ".join(f"{one['peer']} F1 {one['f1']:.2f}" for one in r["agreement"].values()),
    ),
    Benchmark(
        "merges",
        "merges",
        "Bytes, requests and memory of the merge of the keys of many parts, by doublings of the parts",
        lambda r: " and ".join(
            f"{way['sizes'][4]['bytes'] / 1e6:,.0f} MB in {way['sizes'][4]['requests']:,} requests {how}"
            for way, how in ((r["levels"], f"for {r['levels']['sizes'][4]['parts']:,} parts"), (r["flat"], "flat"))
        ),
    ),
    Benchmark(
        "scale",
        "scale [CURVE ...]",
        "Growth of requests, bytes, CPU and memory by parts, versions, shards, steps and recipes",
        _scale,
    ),
    Benchmark(
        "exchange",
        "exchange",
        "Requests and bytes of an exchange of runs between passes of `dedup`, level by level and flat",
        lambda r: " and ".join(
            f"{one['get'] + one['head']:,} requests {how}"
            for one, how in (
                (r["parts"]["levels"]["sizes"][2], f"to {r['parts']['levels']['sizes'][2]['parts']} parts"),
                (r["parts"]["flat"]["sizes"][2], "flat"),
            )
        ),
    ),
    Benchmark(
        "accumulate",
        "accumulate --before CHECKOUT",
        "Reads of `encode` with `accumulate` by the number of earlier versions, and bytes that a version stores",
        lambda r: (
            f"{r['after']['rows'][-1]['requests']:,} reads of {r['after']['rows'][-1]['bytes'] / 1e6:.1f} MB after "
            f"{r['after']['rows'][-1]['earlier']} versions, exponent {r['after']['exponents']['requests']}; "
            f"{r['after']['rows'][-1]['stored'] / 1e6:.1f} MB stored, exponent {r['after']['exponents']['stored']}"
        ),
    ),
    Benchmark(
        "records",
        "records",
        "Bytes, CPU time and memory of the records of 1,000 to 100,000 parts: of the commit, and of what readers open",
        lambda r: (
            f"of {r['sizes'][-1]['parts']:,} parts, one is read with {r['sizes'][-1]['part']['bytes'] / 1e6:.1f} MB "
            f"and {r['sizes'][-1]['part']['cpu_s']:.2f} CPU-seconds, all with "
            f"{r['sizes'][-1]['all']['bytes'] / 1e6:.0f} MB and {r['sizes'][-1]['all']['cpu_s']:.1f}"
        ),
    ),
    Benchmark(
        "walks",
        "walks",
        "The calls on the way of a URL, of a document, and of a query",
        lambda r: f"{r['url']['moves']}, {r['document']['moves']} and {r['trace']['moves']} moves",
    ),
    Benchmark(
        "engine",
        "engine [--rounds 1]",
        "Small parts on Dask with two workers: in a window of groups, and a task each, all at once",
        lambda r: ", ".join(
            f"{arm} {r[arm]['16,000']['parts_per_s']:,} parts/s, {r[arm]['16,000']['client_kb'] / 1e3:.1f} MB of memory"
            for arm in ("window", "all at once")
        ),
    ),
    Benchmark(
        "airflow_overhead",
        "airflow_overhead [--rounds 1]",
        "The recipe `demo` through the DAGs, and the same stages from the shell",
        lambda r: f"{r['ratio']:.1f} x the shell's time",
    ),
    Benchmark(
        "recipes_parse",
        "recipes_parse [--before CHECKOUT]",
        "CPU of the dag-processor for many recipes: a round over all DAG files",
        _recipes_parse,
    ),
)


def facts(one: Benchmark) -> tuple[str, str, str]:
    """Returns main figure, date and machine of the last result."""
    result = one.result
    if result is None or one.figure is None:
        return ("not run yet" if one.figure else "prints tables"), "", ""
    return one.figure(result), result["date"], f"{result['machine']['cpu']}, {result['machine']['cores']} cores"


def readme() -> str:
    """Returns the text of README.md."""
    head = ["benchmark", "`python -m benchmarks.`", "main figure", "date", "machine"]
    rows = [[one.purpose, f"`{one.command}`", *facts(one)] for one in BENCHMARKS]
    return INTRODUCTION + "\n".join(table(head, rows)) + "\n"


def main() -> None:
    """Lists the benchmarks, or writes README.md."""
    options = parser(__doc__)
    options.add_argument("--readme", action="store_true", help="write benchmarks/README.md")
    if options.parse_args().readme:
        README.write_text(readme())
        return
    for one in BENCHMARKS:
        figure, date, machine = facts(one)
        print(f"{one.purpose}\n    python -m benchmarks.{one.command}")
        print(f"    {date}  {figure}  ({machine})\n" if date else f"    {figure}\n")


if __name__ == "__main__":
    main()
