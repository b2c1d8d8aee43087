"""The paper's figures and some of our own, each with a caption that describes its data."""

from analysis.aggregate import Setting
from analysis.figures.calibration import calibration_figures
from analysis.figures.comparison import by_distance, by_ood_ratio, improvement, incremental, paired_slopes
from analysis.figures.single_trial import accuracy_heat_maps, confusion_matrices, contact_sheet, score_histograms
from analysis.figures.style import ReportFigure
from analysis.results import Results
from analysis.streams import FindStream


def all_figures(results: Results, setting: Setting, find_stream: FindStream) -> list[ReportFigure]:
    """Draw every figure that the trials of a setting can fill."""
    figures: list[ReportFigure | None] = []
    for key, trials in setting.trials.groupby("dataset", observed=True):
        dataset = str(key)
        variants = setting.variants[setting.variants["dataset"] == dataset]
        figures += [
            improvement(trials, dataset),
            *(
                incremental(results, trials[trials["task_size"] == size], dataset)
                for size in sorted(trials["task_size"].unique())
            ),
            by_ood_ratio(variants, dataset),
            by_distance(variants, dataset),
            paired_slopes(trials, dataset),
            accuracy_heat_maps(results, trials, dataset),
            confusion_matrices(results, trials, dataset),
            *calibration_figures(results, trials, dataset),
            score_histograms(results, trials, dataset),
            contact_sheet(results, trials, dataset, find_stream),
        ]
    return [figure for figure in figures if figure is not None]
