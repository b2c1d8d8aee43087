"""The paper's formulas a second time: slow, plain Python on lists of floats, written from the text alone."""

import math


def softmax(z, temperature=1.0):
    top = max(z)
    e = [math.exp((value - top) / temperature) for value in z]
    return [value / sum(e) for value in e]


def cls(z, label):
    return -math.log(softmax(z)[label])


def dst(z, reference_probabilities, temperature=1.0):
    p = softmax(z, temperature)
    return sum(-q * math.log(value) for q, value in zip(reference_probabilities, p, strict=True))


def cnf(z):
    return sum(-math.log(value) for value in softmax(z)) / len(z)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def ensemble(p_prev, p_cur):
    p_max = max(p_prev)
    y_max = p_prev.index(p_max)
    total = len(p_prev) + len(p_cur)
    epsilon = (1 - p_max) * len(p_cur) / (total - 1)
    result = []
    for y in range(total):
        if y == y_max:
            result.append(p_max)
        elif y < len(p_prev):
            result.append((1 - p_max - epsilon) / (1 - p_max) * p_prev[y])
        else:
            result.append(epsilon * p_cur[y - len(p_prev)])
    return result


def data_weight(label, labels, classes):
    """Equation 10 for one image of a loss over `classes`; 1 for an image that is not of these classes."""
    if label not in classes:
        return 1.0
    in_range = [y for y in labels if y in classes]
    return len(in_range) / len(classes) / in_range.count(label)


def algorithm_2(stream, num_prev, num_classes):
    """One image after the other, as Algorithm 2 reads; `stream` is a list of (position, class, probability)."""
    kept = []
    for x, y, p in stream:
        of_class = [entry for entry in kept if entry[1] == y]
        if len(of_class) < num_prev / num_classes:
            kept.append((x, y, p))
        elif of_class:
            # Of equally improbable ones the latest goes: the earlier image wins a tie.
            least = min(of_class, key=lambda entry: (entry[2], -entry[0]))
            if least[2] < p:
                kept.remove(least)
                kept.append((x, y, p))
    return sorted(x for x, _, _ in kept)
