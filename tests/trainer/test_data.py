from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from diag.collectors.trainer.data import (
    SEPARATOR,
    Batches,
    BatchRequest,
    ByteCorpus,
    ShardedSampler,
    build_loader,
    documents,
)
from diag.collectors.trainer.keys import OptionError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"hello")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_bytes(b"world!" * 50)
    return tmp_path


def batches_of(corpus: ByteCorpus, sampler: ShardedSampler, workers: int) -> Batches:
    return Batches(build_loader(corpus, sampler, num_workers=workers, prefetch_factor=2, pin_memory=False), sampler)


def test_samples_are_the_documents_end_to_end_with_separators(folder: Path) -> None:
    corpus = ByteCorpus(documents(str(folder)), seq_len=4)
    whole = [*b"hello", SEPARATOR, *b"world!" * 50, SEPARATOR]
    assert len(corpus) == (len(whole) - 1) // 4
    for number in range(len(corpus)):
        assert corpus.sample(number).tolist() == whole[number * 4 : number * 4 + 5]
    assert corpus[BatchRequest(0, (2, 0))].shape == (2, 5)


def test_the_default_corpus_is_the_standard_library() -> None:
    found = documents(None)
    assert sum(document.size for document in found) > 1_000_000
    assert all(d.path.endswith(".py") and "site-packages" not in d.path for d in found)


@pytest.mark.parametrize("name", ["missing", "empty.txt", "hollow"])
def test_no_text_is_a_message(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "hollow").mkdir()
    with pytest.raises(OptionError, match=r"does not exist|no text found"):
        documents(str(tmp_path / name))


def test_too_little_text_is_a_message() -> None:
    with pytest.raises(OptionError, match=r"holds 7 sequences.*2 ranks takes 8.*--data"):
        ShardedSampler(samples=7, batch_size=4, rank=0, world_size=2, seed=0)


def test_ranks_see_disjoint_samples_and_each_epoch_another_order() -> None:
    samplers = [ShardedSampler(samples=50, batch_size=3, rank=rank, world_size=4, seed=1) for rank in range(4)]
    drawn = [list(itertools.islice(sampler, 8)) for sampler in samplers]
    for epoch in (slice(0, 4), slice(4, 8)):
        seen = [sample for rank in drawn for request in rank[epoch] for sample in request.samples]
        assert len(seen) == len(set(seen)) == 48
    assert [r.samples for r in drawn[0][:4]] != [r.samples for r in drawn[0][4:]]
    assert [r.number for r in drawn[2]] == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_goes_on_after_what_training_took_not_after_what_was_fetched(folder: Path, workers: int) -> None:
    corpus = ByteCorpus(documents(str(folder)), seq_len=4)

    def sampler() -> ShardedSampler:
        return ShardedSampler(len(corpus), batch_size=4, rank=1, world_size=2, seed=7)

    expected = [corpus[request] for request in itertools.islice(sampler(), 25)]
    first = sampler()
    before = batches_of(corpus, first, workers)
    taken = [next(before) for _ in range(11)]
    state = first.state_dict()
    before.close()
    second = sampler()
    second.load_state_dict(state)
    torch.manual_seed(0)
    random_state = torch.get_rng_state()
    after = batches_of(corpus, second, workers)
    taken += [next(after) for _ in range(14)]
    after.close()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert second.state_dict()["consumed"] == 25
    for got, wanted in zip(taken, expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(("samples", "seed", "what"), [(51, 0, "samples 50 to 51"), (50, 1, "seed 0 to 1")])
def test_resuming_other_data_is_refused(samples: int, seed: int, what: str) -> None:
    state = ShardedSampler(samples=50, batch_size=3, rank=0, world_size=2, seed=0).state_dict()
    with pytest.raises(OptionError, match=what):
        ShardedSampler(samples, batch_size=3, rank=0, world_size=2, seed=seed).load_state_dict(state)


def rounds(batch_size: int, ranks: int, state: dict[str, int] | None, count: int) -> list[set[int]]:
    """The samples of the next rounds of all ranks, of a text of 100."""
    samplers = [ShardedSampler(100, batch_size, rank, ranks, seed=3) for rank in range(ranks)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    drawn = [list(itertools.islice(sampler, count)) for sampler in samplers]
    return [{sample for own in drawn for sample in own[number].samples} for number in range(count)]


@pytest.mark.parametrize(("batch_size", "ranks"), [(6, 1), (2, 3), (3, 2), (1, 6)])
@pytest.mark.parametrize("consumed", [0, 5, 16, 21])
def test_other_ranks_and_batches_go_on_at_the_same_sample(batch_size: int, ranks: int, consumed: int) -> None:
    """In the second epoch too, as long as the round of all ranks is as large."""
    saved = ShardedSampler(100, batch_size=3, rank=1, world_size=2, seed=3)
    saved.consumed = consumed
    assert rounds(batch_size, ranks, saved.state_dict(), 4) == rounds(3, 2, saved.state_dict(), 4)


def test_a_smaller_round_takes_what_the_larger_one_would_have_taken() -> None:
    saved = ShardedSampler(100, batch_size=3, rank=1, world_size=2, seed=3)
    saved.consumed = 18  # 16 rounds of 6 are an epoch
    halves, wholes = rounds(3, 1, saved.state_dict(), 8), rounds(3, 2, saved.state_dict(), 4)
    assert [one | other for one, other in zip(halves[::2], halves[1::2], strict=True)] == wholes


def test_a_round_that_begins_elsewhere_is_refused() -> None:
    state = ShardedSampler(samples=100, batch_size=3, rank=0, world_size=2, seed=0).state_dict()
    other = ShardedSampler(samples=100, batch_size=4, rank=0, world_size=2, seed=0)
    other.load_state_dict({**state, "consumed": 4})
    assert other.consumed == 3
    with pytest.raises(OptionError, match="stopped after 30 sequences of an epoch, which is not a multiple of the 8"):
        other.load_state_dict({**state, "consumed": 5})
