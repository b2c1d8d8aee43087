"""What `bench_train.py` compares with: a stage of GD+ext in ordinary PyTorch, as the authors' program goes about it.

Images pass one by one through torchvision's PIL transforms in a DataLoader with two workers; tensors have torch's
contiguous layout; P and C run with gradients on, and since that program detaches nothing, the backward pass goes
through them too (`detached` leaves that out, as a more careful user would); head-only fine-tuning runs the backward
pass of the whole network; losses are written as the formulas read, for whole batches; the model is tested after every
epoch, without gradients. Memory is malloc's as it comes.
"""

from time import perf_counter

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

EXTERNAL = -1


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, dropout):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        activated = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return shortcut + self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))


class PlainNetwork(nn.Module):
    """WRN-16-2 with the names of ours, so that the same weights fit."""

    def __init__(self, classes, dropout=0.3):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        sizes = [(16, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        self.blocks = nn.ModuleList([Block(*size, dropout) for size in sizes])
        self.norm = nn.BatchNorm2d(128)
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x)).mean(dim=(2, 3)))


def plain_copy(network, dropout=0.3):
    copy = PlainNetwork(network.head.out_features, dropout)
    copy.load_state_dict({k.removeprefix("backbone."): v for k, v in network.state_dict().items()})
    return copy.to(memory_format=torch.contiguous_format)


def training_transform(statistics):
    return transforms.Compose(
        [
            transforms.ColorJitter(brightness=63 / 255, contrast=0.8),
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            *test_transform(statistics).transforms,
        ]
    )


def test_transform(statistics):
    return transforms.Compose([transforms.ToTensor(), transforms.Normalize(statistics.mean, statistics.std)])


class Images(Dataset):
    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images.numpy(), labels.numpy(), transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def dst(logits, reference_logits, temperature):
    reference = F.softmax(reference_logits / temperature, dim=1)
    return -(reference * F.log_softmax(logits / temperature, dim=1)).sum(dim=1)


def ensemble(p_prev, p_cur):
    """Equations 6 and 7."""
    num_prev, num_cur = p_prev.shape[1], p_cur.shape[1]
    p_max, y_max = p_prev.max(dim=1, keepdim=True)
    epsilon = (1 - p_max) * num_cur / (num_prev + num_cur - 1)
    others = (1 - p_max - epsilon) / (1 - p_max) * p_prev
    previous = torch.where(torch.arange(num_prev) == y_max, p_max, others)
    return torch.cat([previous, epsilon * p_cur], dim=1)


def weights_of(labels, counts, first, last):
    """Equation 10 for a loss over the classes from first to last - 1."""
    in_range = counts[first:last]
    of_class = torch.ones(len(counts) + 1)  # the last one for images without label
    of_class[first:last] = in_range.sum() / (last - first) / in_range
    return of_class[labels]


def teacher_loss(logits, labels, num_prev):
    """Equation 12."""
    own = labels >= num_prev
    cls = F.cross_entropy(logits[own], labels[own] - num_prev)
    return cls - F.log_softmax(logits[~own], dim=1).mean(dim=1).mean()


def model_loss(logits, labels, previous, teacher, counts=None):
    """Equation 9 with the weights of Equation 11, and those of Equation 10 where class counts are given."""
    num_prev, num_seen = previous.shape[1], logits.shape[1]
    labelled = labels != EXTERNAL

    def weighed(losses, first, last, which=slice(None)):
        return losses if counts is None else losses * weights_of(labels[which], counts, first, last)

    cls = F.cross_entropy(logits[labelled], labels[labelled], reduction="none")
    loss = weighed(cls, 0, num_seen, labelled).mean()
    loss = loss + weighed(dst(logits[:, :num_prev], previous, 2), 0, num_prev).mean() * num_prev / num_seen
    current = weighed(dst(logits[:, num_prev:], teacher, 2), num_prev, num_seen).mean()
    loss = loss + current * (num_seen - num_prev) / num_seen
    q = ensemble(F.softmax(previous[~labelled], dim=1), F.softmax(teacher[~labelled], dim=1))
    return loss - (q * F.log_softmax(logits[~labelled], dim=1)).sum(dim=1).mean()


def run_stage(setup, epochs, *, detached):
    """The three trainings of a stage, tested after every epoch; images trained on, and seconds."""
    num_prev = setup.num_prev
    previous, model = plain_copy(setup.previous), plain_copy(setup.model)
    teacher = plain_copy(setup.teacher)
    counts = torch.bincount(setup.labels[setup.labels >= 0], minlength=setup.num_seen)
    loader = DataLoader(
        Images(setup.images, setup.labels, training_transform(setup.statistics)),
        batch_size=128,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    tests = DataLoader(
        Images(setup.test_images, setup.test_labels, test_transform(setup.statistics)),
        batch_size=128,
        num_workers=2,
        persistent_workers=True,
    )

    def c_step(inputs, labels):
        return teacher_loss(teacher(inputs), labels, num_prev)

    def m_step(inputs, labels, weights=None):
        references = (previous(inputs), teacher(inputs))
        if detached:
            references = [logits.detach() for logits in references]
        return model_loss(model(inputs), labels, *references, weights)

    images, started = 0, perf_counter()
    for network, step, times, trained in (
        (teacher, c_step, epochs[0], teacher.parameters()),
        (model, m_step, epochs[1], model.parameters()),
        (model, lambda inputs, labels: m_step(inputs, labels, counts), epochs[2], model.head.parameters()),
    ):
        optimiser = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=5e-4)
        previous.eval()
        if network is model:
            teacher.eval()
        for _ in range(times):
            network.train()
            for inputs, labels in loader:
                optimiser.zero_grad()
                loss = step(inputs, labels)
                loss.backward()
                optimiser.step()
                loss.item()  # to print it
                images += len(inputs)
            network.eval()
            with torch.no_grad():
                for inputs, labels in tests:
                    own = labels >= num_prev if network is teacher else labels >= 0
                    if own.any():
                        network(inputs[own]).argmax(dim=1)
    return images, perf_counter() - started
