"""Two conventions: the paper's text, and the authors' released program.

Each field is one place where the program differs from the text. Code reads the field, never the convention's name.
Accidents of the program are not copied: reserved labels of external images that late in a run pick
up the balance weight of the last two classes; data weighting throughout that takes all external images and those of
every other eight classes for OOD and spreads them over all classes; a fine-tuning of Table 3's teacher with the
confidence loss that asks for unsure answers to labelled images too; a loss that is NaN for a batch without labelled
images (0 here); a set smaller than a batch that gives no update (one here); and the remainder of a coreset that does
not divide by the classes, which goes to the highest class numbers of the data set (to the newest classes here).
"""

from dataclasses import dataclass, fields

from gd_ray.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Every field is a difference between the paper and the released program."""

    name: str
    scale_by_squared_temperature: bool
    """Distillation terms are multiplied by the temperature squared."""
    pool_global_terms: bool
    """The cls and Q terms are summed and divided once by all images, rather than each by its own."""
    lone_previous_over_previous: bool
    """Without a current-task term, P's loss weights are relative to tasks 1..t-1 rather than 1..t."""
    image_may_win_several_classes: bool
    """Algorithm 2 ranks every image for every class by its raw logit, rather than for its argmax class only."""
    ood_from_whole_window: bool
    """Random OOD images come from anywhere in the window, rather than being its first, never scored, images."""
    ensemble_alone_has_no_teacher: bool
    """Q without C spreads epsilon uniformly over the new classes, rather than training C to spread it."""
    weigh_external_as_previous: bool
    """Data weighting throughout counts external images of previous classes, evenly over those classes."""
    forgetting_over_all_classes: bool
    """FGT is averaged over all stages with weights relative to all classes, rather than to those seen."""
    fine_tune_from_copy_without_teacher: bool
    """Fine-tuning without C distils a copy of M just trained in the place of P, rather than P again."""
    coreset_from_balanced_set: bool
    """After fine-tuning on a balanced set the coreset is drawn from it, rather than from all labelled images."""


_DIFFERENCES = [f.name for f in fields(Convention) if f.name != "name"]
CONVENTIONS = {
    name: Convention(name=name, **dict.fromkeys(_DIFFERENCES, released))
    for name, released in (("paper", False), ("released", True))
}


def convention_named(name: str) -> Convention:
    """Return the convention of that name, or raise a UserError with the nearest name."""
    if name not in CONVENTIONS:
        raise unknown_name("convention", name, CONVENTIONS)
    return CONVENTIONS[name]
