"""Query by example: the English part of QUESST 2014, without training."""

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
        truth = {part: restrict(each, chosen, names) for part, each in truth.items()}
    fold = Fold("QUESST 2014", documents, dev, test)
    return entry.task(QueryTask, request, [fold], truths=truth)


def restrict(truth: Truth, queries: set[str], documents: frozenset[str]) -> Truth:
    """Restrict the ground truth to some queries and documents."""
    kept = {query: found & documents for query, found in truth.documents.items() if query in queries}
    return Truth({query: found for query, found in kept.items() if found}, len(documents))


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
