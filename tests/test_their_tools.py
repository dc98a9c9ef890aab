"""Models inside other libraries: sentence-transformers, pipelines, scikit-learn."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from transformers import PreTrainedModel, pipeline

from exlm import (
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    InputError,
)
from exlm.integrations.sklearn import Embedder
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.manifest import damage
from exlm.storage.models import load_model, save_model
from exlm.tasks.embed import embed
from tests.conftest import MOLECULES, train_smiles_tokenizer

SIZES = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
)
KINDS = {
    "plain": {},
    "late expansion": {"expanded_layers": 1},
    "mlm": {"objective": "mlm"},
    "release": {"boundary_states": "k"},
    "repeated": {"objective": "mlm", "repeat": 2},
}


def save(path: Path, head: type = ExLMForMaskedLM, repeat: int = 1, **switches: object) -> str:
    """A directory with an untrained model of molecules."""
    torch.manual_seed(0)
    tokenizer = train_smiles_tokenizer(MOLECULES)
    config = ArchitectureConfig(**SIZES, **switches).build(tokenizer, repeat)
    config.molecules = True
    if head is not ExLMForMaskedLM:  # as exlm finetune does
        config.task_layers = config.num_hidden_layers
    save_model(path, head(config), tokenizer)
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("model") / "model")


def embedded(model: str, folder: Path, **options: object) -> np.ndarray:
    """The vectors of MOLECULES as `exlm embed` writes them."""
    pd.DataFrame({"smiles": MOLECULES}).to_csv(folder / "molecules.csv", index=False)
    target = embed(model, str(folder / "molecules.csv"), str(folder / "vectors.parquet"), **options)
    return np.stack(pq.read_table(target)["embedding"].to_pylist()).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_transformers_gives_the_vectors_of_embed(kind, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    path = save(tmp_path / "model", **KINDS[kind])
    expected = embedded(path, tmp_path)
    loaded = library.SentenceTransformer(path, device="cpu")
    np.testing.assert_allclose(loaded.encode(MOLECULES), expected, atol=1e-5)
    loaded.save(str(tmp_path / "again"))
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_allclose(again.encode(MOLECULES), expected, atol=1e-5)


def test_sentence_transformers_reads_a_fine_tuned_model(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    path = save(tmp_path / "model", ExLMForSequenceClassification)
    expected = embedded(path, tmp_path)
    np.testing.assert_allclose(
        library.SentenceTransformer(path).encode(MOLECULES), expected, atol=1e-5
    )


def test_the_manifest_covers_the_pooling(model):
    pooling = Path(model) / "1_Pooling/config.json"
    assert damage(Path(model)) is None
    content = pooling.read_text()
    pooling.write_text(content.replace("mean", "cls "))
    assert "1_Pooling/config.json does not match" in str(damage(Path(model)))
    pooling.write_text(content)


def test_pipelines(model, tmp_path):
    fillings = pipeline("fill-mask", model, device="cpu")("CC(=O)<mask>c1ccccc1")
    network, tokenizer = load_model(model, ExLMForMaskedLM)
    batch = tokenizer("CC(=O)<mask>c1ccccc1", return_tensors="pt")
    with torch.no_grad():
        probabilities = (
            network.eval()(**batch)
            .logits[0, (batch["input_ids"][0] == tokenizer.mask_token_id)]
            .exp()
        )
    assert fillings[0]["score"] == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert fillings[0]["token"] == probabilities.argmax().item()
    features = pipeline("feature-extraction", model, device="cpu")("CCO")
    assert np.shape(features) == (1, 5, 16)
    save(tmp_path / "classes", ExLMForSequenceClassification)
    (found,) = pipeline("text-classification", str(tmp_path / "classes"), device="cpu")("CCO")
    assert 0 <= found["score"] <= 1


def test_question_answering_loads_by_its_auto_class(tmp_path):
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    path = save(tmp_path / "qa", ExLMForQuestionAnswering)
    batch = AutoTokenizer.from_pretrained(path)("CCO", "CCN", return_tensors="pt")
    output = AutoModelForQuestionAnswering.from_pretrained(path)(**batch)
    assert output.start_logits.shape == output.end_logits.shape == batch["input_ids"].shape


@pytest.mark.parametrize("options", [{}, {"pooling": "first"}, {"layers": 1}])
def test_the_embedder_gives_the_vectors_of_embed(model, tmp_path, options):
    expected = embedded(model, tmp_path, **options)
    embedder = Embedder(model, **options)
    column = pd.DataFrame({"smiles": MOLECULES})
    for given in (
        MOLECULES,
        np.array(MOLECULES),
        column,
        column["smiles"],
        np.array(MOLECULES, dtype=object)[:, None],
    ):
        found = embedder.fit_transform(given)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert embedder.transform([]).shape == (0, 16)


def test_the_embedder_is_a_scikit_learn_transformer(model):
    for estimator, check in estimator_checks_generator(Embedder(model)):
        check(estimator)
    names = Embedder(model).fit(MOLECULES).get_feature_names_out()
    assert list(names) == [f"embedder{i}" for i in range(16)]
    table = Embedder(model).set_output(transform="pandas").fit_transform(MOLECULES)
    assert list(table.columns) == list(names)


def test_a_pickled_or_cloned_embedder_holds_the_path_alone(model):
    embedder = Embedder(model)
    vectors = embedder.transform(MOLECULES)
    stored = pickle.dumps(embedder)
    assert len(stored) < 1000
    np.testing.assert_array_equal(pickle.loads(stored).transform(MOLECULES), vectors)
    assert vars(clone(embedder)) == vars(embedder)


def test_a_grid_search_over_the_embedder(model):
    lengths = np.array([len(smiles) for smiles in MOLECULES], dtype=float)
    steps = make_pipeline(Embedder(model), Ridge())
    search = GridSearchCV(
        steps, {"embedder__layers": [1, 2], "ridge__alpha": [0.1, 1.0]}, cv=2, n_jobs=2
    )
    tie_weights = PreTrainedModel.tie_weights
    with parallel_backend("threading"):  # processes pickle the steps, as the test above does
        search.fit(MOLECULES, lengths)
    # else no later model of this process has tied weights
    assert PreTrainedModel.tie_weights is tie_weights
    assert search.predict(MOLECULES).shape == (len(MOLECULES),)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_strings_that_cannot_be_used(model):
    given = ["CCO", "no molecule", None, "CCN"]
    with pytest.raises(
        InputError, match="row 2, value 'no molecule', cannot be used: not a SMILES"
    ):
        Embedder(model).fit_transform(given)
    vectors = Embedder(model, on_invalid="nan").fit_transform(given)
    assert np.isnan(vectors).all(1).tolist() == [False, True, True, False]
    for wrong, message in (
        ([1.0, 2.0], "row 1 is 1.0"),
        ("CCO", "one column"),
        ([["CCO", "CCN"]], "one column"),
    ):
        with pytest.raises(InputError, match=message):
            Embedder(model).fit_transform(wrong)
    with pytest.raises(InputError, match="on_invalid is 'skip'"):
        Embedder(model, on_invalid="skip").fit(["CCO"])
    with pytest.raises(InputError, match="/nowhere does not exist"):
        Embedder("/nowhere").fit(["CCO"])
