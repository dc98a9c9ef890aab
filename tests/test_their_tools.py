"""Models inside other libraries: sentence-transformers, pipelines, scikit-learn."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, pipeline

from exlm import (
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
    ExLMModel,
    InputError,
)
from exlm.integrations.sklearn import Embedder
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.manifest import damage
from exlm.storage.models import load_model, save_model
from exlm.tasks.embed import embed
from exlm.tasks.predict import predict
from tests.conftest import MOLECULES, train_smiles_tokenizer

SIZES = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
)
RECIPES = []  # of pre-trainings
for place in sorted(Path(__file__).parents[1].glob("recipes/*/*.yaml")):
    content = yaml.safe_load(place.read_text())
    if isinstance(content.get("model"), dict):
        RECIPES.append(place)
KINDS = {
    "plain": {},
    "late expansion": {"expanded_layers": 1},
    "mlm": {"objective": "mlm"},
    "release": {"boundary_states": "k"},
    "repeated": {"objective": "mlm", "repeat": 2},
}


def save(
    path: Path,
    head: type = ExLMForMaskedLM,
    repeat: int = 1,
    task: dict | None = None,
    **switches: object,
) -> str:
    """A directory with an untrained model of molecules, or of what the `task` says."""
    torch.manual_seed(0)
    tokenizer = train_smiles_tokenizer(MOLECULES)
    config = ArchitectureConfig(**SIZES | switches).build(tokenizer, repeat)
    config.molecules = task is None
    config.task = task
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


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_text_has_one_vector_in_every_tool(recipe, tmp_path):
    """Of a tiny version of the recipe's model; the exported model is in tests/test_export.py."""
    library = pytest.importorskip("sentence_transformers")
    settings = yaml.safe_load(recipe.read_text())
    layers = min(settings["model"]["num_hidden_layers"], 3)
    switches = settings["model"] | SIZES | {"num_hidden_layers": layers}
    path = save(tmp_path / "model", repeat=settings["data"].get("repeat", 1), **switches)
    expected = embedded(path, tmp_path)
    texts = [f" {text}\n" for text in MOLECULES]
    network, tokenizer = AutoModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = network(**batch, output_hidden_states=True)
    real = batch["attention_mask"][..., None]
    mean = (output.last_hidden_state * real).sum(1) / real.sum(1)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    features = pipeline("feature-extraction", path, device="cpu")(texts[0])
    np.testing.assert_allclose(np.mean(features[0], 0), expected[0], atol=1e-5)
    loaded = library.SentenceTransformer(path, device="cpu")
    np.testing.assert_allclose(loaded.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(Embedder(path).transform(texts), expected, atol=1e-5)


def test_models_without_the_number_of_layers_keep_the_vectors_of_embed(tmp_path):
    """Earlier versions did not save it; nor did their directories name `forward`."""
    library = pytest.importorskip("sentence_transformers")
    path = Path(save(tmp_path / "model", expanded_layers=1))
    expected = embedded(str(path), tmp_path)
    config = json.loads((path / "config.json").read_text())
    assert config["task_layers"] == 1
    (path / "config.json").write_text(json.dumps(config | {"task_layers": None}))
    settings = (path / "sentence_bert_config.json").read_text()
    (path / "sentence_bert_config.json").write_text(settings.replace("forward", "task_states"))
    (path / "manifest.json").unlink()
    np.testing.assert_array_equal(embedded(str(path), tmp_path), expected)
    np.testing.assert_allclose(
        library.SentenceTransformer(str(path)).encode(MOLECULES), expected, atol=1e-5
    )


def test_long_texts_are_cut_alike_in_every_tool(tmp_path, capsys):
    library = pytest.importorskip("sentence_transformers")
    task = {
        "task_type": "multiclass",
        "max_length": 8,
        "precision": "fp32",
        "text_column": "text",
        "pair_column": None,
        "label_columns": ["label"],
        "classes": ["a", "b"],
        "molecules": False,
    }
    path = save(tmp_path / "model", ExLMForSequenceClassification, task=task)
    texts = ["CCO", "CCOCCNCCC", "CCCCCCOCCCCCCN"]
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "texts.csv", index=False)
    predicted = pd.read_csv(predict(path, str(tmp_path / "texts.csv")))
    assert "2 cut to max_length" in capsys.readouterr().out
    classify = pipeline("text-classification", path, device="cpu", truncation=True)
    answers = [classify(text)[0]["score"] for text in texts]
    np.testing.assert_allclose(predicted["confidence"], answers, atol=1e-5)
    expected = Embedder(path).transform(texts)
    target = embed(path, str(tmp_path / "texts.csv"), str(tmp_path / "vectors.npy"))
    np.testing.assert_allclose(np.load(target), expected, atol=1e-6)
    assert "2 cut to max_length" in capsys.readouterr().out
    vectors = library.SentenceTransformer(path, device="cpu").encode(texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    extract = pipeline(
        "feature-extraction", path, device="cpu", tokenize_kwargs={"truncation": True}
    )
    means = [np.mean(extract(text)[0], 0) for text in texts]
    np.testing.assert_allclose(means, expected, atol=1e-5)


LABELS = {
    "SEQ_CLS": (ExLMForSequenceClassification, {"labels": torch.tensor([0, 1])}),
    "TOKEN_CLS": (ExLMForTokenClassification, {"labels": torch.tensor([[0, 1, 1, 0, 1]] * 2)}),
    "QUESTION_ANS": (
        ExLMForQuestionAnswering,
        {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 3])},
    ),
    "FEATURE_EXTRACTION": (ExLMModel, {}),
    None: (ExLMForMaskedLM, {"labels": torch.tensor([[-100, 5, -100, 6, -100]] * 2)}),
}


@pytest.mark.parametrize("task_type", LABELS)
def test_an_adapter_of_peft_learns_is_saved_and_merged(task_type, tmp_path):
    peft = pytest.importorskip("peft")
    head, labels = LABELS[task_type]
    path = save(tmp_path / "model", head if labels else ExLMForMaskedLM)
    inputs = {"input_ids": torch.tensor([[0, 5, 7, 6, 2], [0, 6, 5, 6, 2]])}

    def output(model, labels):
        return model.eval()(**inputs, **labels).to_tuple()[0]

    # with random adapters, none of which starts at 0, every one of them has a gradient
    config = peft.LoraConfig(
        task_type=task_type,
        target_modules="all-linear",
        # PEFT trains these heads as a whole, but does not leave them out of "all-linear" itself
        exclude_modules={"TOKEN_CLS": "classifier", "QUESTION_ANS": "qa_outputs"}.get(task_type),
        r=2,
        init_lora_weights=False,
    )
    model = peft.get_peft_model(head.from_pretrained(path), config)
    output(model.train(), labels).square().mean().backward()
    parts = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, grad in parts.items() if grad is None or not grad.any()]
    assert not missing and any("layers.1.attention.qkv" in name for name in parts)
    torch.optim.SGD(model.parameters(), lr=0.1).step()

    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(head.from_pretrained(path), tmp_path / "adapter")
    expected = output(model, {})
    assert torch.equal(output(again, {}), expected)
    torch.testing.assert_close(output(again.merge_and_unload(), {}), expected, atol=1e-5, rtol=1e-5)


def test_an_adapter_of_the_head_that_a_loss_would_pass_by_is_refused(tmp_path):
    peft = pytest.importorskip("peft")
    network = ExLMForMaskedLM.from_pretrained(save(tmp_path / "model", ExLMForMaskedLM))
    model = peft.get_peft_model(network, peft.LoraConfig(target_modules=["decoder"]))
    inputs = torch.tensor([[0, 5, 7, 6, 2]])
    with pytest.raises(InputError, match="quantised or have an adapter"):
        model(input_ids=inputs, labels=torch.where(inputs == 7, 7, -100))


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


def test_a_length_that_holds_no_text_is_refused(model, tmp_path):
    (tmp_path / "a.smi").write_text("CCO\n")
    with pytest.raises(InputError, match="max_length is -5; give at least 3"):
        embed(model, str(tmp_path / "a.smi"), max_length=-5)
    with pytest.raises(InputError, match="max_length is 0; give at least 3"):
        Embedder(model, max_length=0).transform(["CCO"])


def test_a_pickled_or_cloned_embedder_holds_the_path_alone(model):
    embedder = Embedder(model)
    vectors = embedder.transform(MOLECULES)
    stored = pickle.dumps(embedder)
    assert len(stored) < 1000
    np.testing.assert_array_equal(pickle.loads(stored).transform(MOLECULES), vectors)
    assert vars(clone(embedder)) == vars(embedder)


def test_an_embedder_does_not_use_another_model_than_it_was_fitted_with(model, tmp_path):
    place = tmp_path / "current"
    shutil.copytree(model, place)
    before = Embedder(str(place)).transform(MOLECULES)
    stored = pickle.dumps(Embedder(str(place)).fit(MOLECULES))
    np.testing.assert_array_equal(
        pickle.loads(stored).transform(MOLECULES), Embedder(model).transform(MOLECULES)
    )
    network = AutoModel.from_pretrained(place)
    network.embeddings.weight.data += 1
    network.save_pretrained(place)
    (place / "manifest.json").unlink()  # of the files as they were
    # one that is not fitted uses what lies there now
    assert not np.allclose(Embedder(str(place)).transform(MOLECULES), before)
    with pytest.raises(InputError, match="no longer the model that this Embedder was fitted with"):
        pickle.loads(stored).transform(MOLECULES)


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
    with pytest.raises(InputError, match="row 2, value .* cannot be used: it has half a character"):
        Embedder(model, molecules=False).fit_transform(["CCO", "C \ud83d"])
    for wrong, message in (
        ([1.0, 2.0], "not one column of strings"),
        (["CCO", None, 5], "row 3 is 5, which is no string"),
        ("CCO", "one column"),
        ([["CCO", "CCN"]], "one column .* read together by exlm embed"),
        (pd.Series([["CCO", "CCN"]]), "one column .* read together by exlm embed"),
    ):
        with pytest.raises(InputError, match=message):
            Embedder(model).fit_transform(wrong)
    with pytest.raises(InputError, match="on_invalid is 'skip'"):
        Embedder(model, on_invalid="skip").fit(["CCO"])
    with pytest.raises(InputError, match="/nowhere does not exist"):
        Embedder("/nowhere").fit(["CCO"])


def test_the_embedder_notes_other_spellings_once_for_each_model(model, capsys, monkeypatch):
    monkeypatch.setattr("exlm.integrations.sklearn.MODELS_WITH_NOTE", set())
    embedder = Embedder(model, molecules=True)
    embedder.fit_transform(["CCO"] * 7)
    assert "spelled otherwise" not in capsys.readouterr().err
    for count in (3, 4, 5):
        embedder.fit_transform(["OCC"] * count)
    assert capsys.readouterr().err.count("spelled otherwise") == 1
    Embedder("molecules-5M").fit_transform(["OCC"] * 6)
    assert "6 of the first 6 molecules of the input are spelled" in capsys.readouterr().err


def test_the_embedder_standardizes_and_notes_other_spellings_as_embed_does(capsys, monkeypatch):
    monkeypatch.setattr("exlm.integrations.sklearn.MODELS_WITH_NOTE", set())
    kekule = ["C1=CC=CC=C1O", "C1=CC=CC=C1N", "CCO", "CCN", "CCC"] * 3
    spelled_by_rdkit = ["Oc1ccccc1", "Nc1ccccc1", "CCO", "CCN", "CCC"] * 3
    as_they_are = Embedder("molecules-5M").fit_transform(kekule)
    assert "6 of the first 15 molecules of the input" in capsys.readouterr().err
    standardized = Embedder("molecules-5M", standardize="canonical").fit_transform(kekule)
    assert "spelled otherwise" not in capsys.readouterr().err
    expected = Embedder("molecules-5M").fit_transform(spelled_by_rdkit)
    np.testing.assert_array_equal(standardized, expected)
    assert np.abs(as_they_are - expected).max() > 0.01
    with pytest.raises(InputError, match="standardize is 'smiles'; it must be one of"):
        Embedder("molecules-5M", standardize="smiles").fit(kekule)
