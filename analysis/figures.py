"""The paper's figures and some of our own, each with a caption that says what to look for."""

from analysis.comparison_figures import by_distance, by_ood_ratio, improvement, incremental, paired_slopes
from analysis.drawing import Picture
from analysis.results import Results
from analysis.settings import Setting
from analysis.streams import FindStream
from analysis.trial_figures import accuracy_heat_maps, confidence_histograms, confusion_matrices, contact_sheet


def all_pictures(results: Results, setting: Setting, images: FindStream) -> list[Picture]:
    """Every figure that the trials of a setting can fill."""
    pictures: list[Picture | None] = []
    for dataset, trials in setting.trials.groupby("dataset", observed=True):
        name = str(dataset)
        pictures.append(improvement(trials, name, setting.convention))
        for size in sorted(trials["task_size"].unique()):
            pictures.append(
                incremental(results, trials[trials["task_size"] == size], name, int(size), setting.convention)
            )
        variants = setting.variants[setting.variants["dataset"] == dataset]
        pictures.append(by_ood_ratio(variants, name, setting.convention))
        pictures.append(by_distance(variants, name, setting.convention))
        pictures.append(paired_slopes(trials, name, setting.convention))
        pictures.append(accuracy_heat_maps(results, trials, name))
        pictures.append(confusion_matrices(results, trials, name))
        pictures.append(confidence_histograms(results, trials, name))
        pictures.append(contact_sheet(results, trials, name, images))
    return [picture for picture in pictures if picture is not None]
