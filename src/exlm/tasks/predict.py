"""Predictions for the rows of a file; every row of the input appears in the output."""

import pandas as pd

from exlm.tasks.encoders import saved_task
from exlm.tasks.finetuned import seed_directories
from exlm.tasks.frames import output_path, write_frame
from exlm.tasks.inference import OnInvalid
from exlm.tasks.kinds import kind_of
from exlm.tasks.predictions import Member, Predictions, PredictOptions


def predict(
    model: str,
    input: str,
    output: str | None = None,
    text_column: str | None = None,
    molecules: bool | None = None,
    header: bool = True,
    on_invalid: OnInvalid = "skip",
    calibrated: bool = False,
    distance: bool = False,
    device: str = "auto",
) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is an ensemble: predictions are means, further columns have the standard deviations.
    For one label with classes, two columns have the predicted class and its probability (`confidence`). If the label
    columns are present too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard input. For question
            answering also SQuAD JSON.
        output: .csv, .tsv or .parquet file to write; INPUT-predictions.csv beside the input where absent.
        text_column: column of the SMILES or text; that of the training, or one with a usual name, where absent.
        molecules: whether the texts are SMILES; as in the training where absent.
        header: whether a table has a header line; without it, its columns are called `column 1`, `column 2`, ...
        on_invalid: rows that cannot be used are marked in the column `problem` (`skip`) or stop the command (`error`).
            With `keep`, there are predictions for molecules that RDKit cannot parse too.
        calibrated: divide the logits by the temperature that was fitted on the validation rows, so that probabilities
            are closer to how often they are right. Which class is the most probable stays the same for one model.
        distance: for molecules, add the column `distance to training`: 1 - the highest Tanimoto similarity (ECFP4) to
            a training molecule.
        device: auto, cpu, cuda or cuda:NUMBER.
    """
    target = output_path(input, output, "predictions.csv", (".csv", ".tsv", ".parquet"))
    options = PredictOptions(text_column, molecules, header, on_invalid, calibrated, distance)
    found = predictions_of(model, input, options, device)
    write_frame(found.frame, target)
    print(f"{found.summary}: {target}")
    for score in [*found.scores.values()][:1]:
        values = "  ".join(f"{name} {value:.4f}" for name, value in score(found.labelled).items())
        print(f"{len(found.labelled)} labelled rows: {values}")
    if found.note:
        print(f"not scored: {found.note}")
    return found.frame


def predictions_of(model: str, input: str, options: PredictOptions, device: str = "auto") -> Predictions:
    """What a fine-tuned model, or the ensemble of its seeds, predicts for a file. InputError if it is no such model."""
    run_dirs = seed_directories(model)
    tasks = [saved_task(str(run_dir)) for run_dir in run_dirs]
    kind = kind_of(tasks[0]["task_type"])
    members = [Member(path, task, kind.trainer.models, device) for path, task in zip(run_dirs, tasks, strict=True)]
    return kind.predict(members, input, options)
