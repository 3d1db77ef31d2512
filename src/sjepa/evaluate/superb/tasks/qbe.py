"""Query by example: the English part of QUESST 2014, without training."""

from sjepa.counts import format_count
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.corpora.quesst import Truth, read_quesst
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import MTWV
from sjepa.evaluate.superb.queries import LayerSearch, QueryTask
from sjepa.evaluate.superb.records import LITE_UTTERANCES, Fold, sample_evenly
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe

LITE_QUERIES = 30


def build(entry: Entry, request: Request) -> QueryTask:
    """Build the task. The lite protocol uses few queries and a part of the documents."""
    documents, queries, truths = read_quesst(request.data)
    dev, test = queries["dev"], queries["eval"]
    truth = {"dev": truths["dev"], "test": truths["eval"]}
    if request.lite:
        documents = sample_evenly(documents, LITE_UTTERANCES[1])
        dev, test = (sample_evenly(part, LITE_QUERIES) for part in (dev, test))
        names = frozenset(u.name for u in documents)
        chosen = {u.name for u in dev + test}
        truth = {part: restrict(each, part, chosen, names) for part, each in truth.items()}
    fold = Fold("QUESST 2014", documents, dev, test)
    return entry.task(QueryTask, request, [fold], truths=truth)


def restrict(truth: Truth, part: str, queries: set[str], documents: frozenset[str]) -> Truth:
    """Restrict the ground truth of a part to some queries and documents. Raise UserError if no query is in any."""
    kept = {query: names & documents for query, names in truth.documents.items() if query in queries}
    kept = {query: names for query, names in kept.items() if names}
    if not kept:
        raise UserError(
            f"the lite protocol keeps {format_count(len(documents), 'document')}, and none of them has a query of the "
            f"{part} part, so it cannot be scored: use the full protocol, without --lite"
        )
    return Truth(kept, len(documents))


ENTRY = Entry(
    name="qbe",
    title="query by example",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=1, lr=0.0, batch=1, accumulate=1, evaluate_every=1),
    lite_steps=0,
    metrics=(MTWV,),
    build=build,
    search=LayerSearch,
    corpus=CorpusLocation(("quesst14Database", "scoring/language_key_dev.lst")),
    submission=Submission({"benchmark.stdlist.xml": "qbe_public/benchmark.stdlist.xml"}),
)
