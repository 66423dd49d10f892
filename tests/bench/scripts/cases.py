"""The public scripts: which commit, which data, what is changed and how each is started.

Nothing of them is stored here. A change is a substitution that has to apply exactly; its reason is part of the case.
Every script trains on two CPU ranks with gloo, or in one process, with one thread a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import material

EXAMPLES = "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"
NANOGPT = "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
MINGPT = "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"
DLRM = "facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a"
ACCELERATE = "huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83"
TRL = "huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8"
LIGHTNING = "Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414"
TIMM = "huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d"
LLM_C = "karpathy/llm.c", "f1e2ace651495b74ae22d45d1723443fd00ecd3a"
CLEANRL = "vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
LLAMA2_C = "karpathy/llama2.c", "350e04fe35433e6d2941dce5a1f53308f87058eb"
PYTORCH_CIFAR = "kuangliu/pytorch-cifar", "49b7aa97b0c12fe0d4054e670403a16b6b834ddd"
OPACUS = "pytorch/opacus", "4d0ebc84613d214fbfd37fbfd1390e3747a625ce"
IGNITE = "pytorch/ignite", "de08e799cfb55a6cf4aa778575d6bad725385453"
DIFFUSERS = "huggingface/diffusers", "58eb52c0803ea9af3abec60841c2a093bdf1f951"
PYG = "pyg-team/pytorch_geometric", "5c6461b2305ad068a6d61165b3c55852a11aaa41"

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
ONE_RANK = ("stop-pulses", "core-taken", "exception")
Maker = Callable[[Path], None]


@dataclass(frozen=True)
class Change:
    """A substitution in one file of the script, and why it is needed."""

    file: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Case:
    """A script, as its user starts it.

    ``launcher`` is what is put before the script; empty: ``diag run --nproc 2``, and torchrun where nothing is
    recorded. ``steps`` is the number of steps of an optimizer on a rank, from the arguments; ``faults`` are names of
    ``faults.py``; ``data`` is a part of the paths of what a slow or failing disk holds, ``opens`` the number of
    openings there in a training process before the first that fails.
    """

    name: str
    source: tuple[str, str]
    folder: str  # the script is started here; all of it is taken where ``needs`` is empty
    script: str
    arguments: tuple[str, ...]
    make: Maker
    steps: int
    losses: str  # regular expression of what the script prints of its losses
    launcher: tuple[str, ...] = ("python",)
    needs: tuple[str, ...] = ()  # more folders or files of the repository
    path: str = ""  # put on PYTHONPATH, relative to the repository
    changes: tuple[Change, ...] = ()
    faults: tuple[str, ...] = ()
    data: str = ""
    slow_ms: int = 40
    reads: bool = False  # each read is slow, not the opening alone
    in_loop: bool = False  # the training loop gets its data itself, without a DataLoader
    slow_call: str = ""  # MODULE:CLASS.METHOD, called in the training's process; takes ``slow_ms`` longer
    opens: int = 0
    outputs: str = ""  # files whose tensors are compared instead of printed losses
    ranks: int = 2
    alone: bool = False  # its ranks never exchange anything
    data_bound: bool = False  # by itself: it reads its data in the training's process for half of the step
    note: str = ""


def _nothing(_: Path) -> None:
    """Data that the script makes itself."""


def _mnist(train: int, up: str = "..") -> Maker:
    return lambda folder: material.mnist(folder / up / "data", train)


def _glue(rows: int) -> Maker:
    def make(folder: Path) -> None:
        material.glue(folder, rows)
        material.bert(folder / "bert-base-cased")

    return make


def _sft(rows: int) -> Maker:
    def make(folder: Path) -> None:
        material.text_lines(folder / "lines", rows)
        material.causal_model(folder / "model")

    return make


def _images(train: int) -> Maker:
    def make(folder: Path) -> None:
        material.image_folder(folder / "images" / "train", train)
        material.image_folder(folder / "images" / "val", 8)

    return make


def _diffusion(folder: Path) -> None:
    material.image_folder(folder / "images" / "train", 160)
    material.unet(folder / "unet")


_CPU_FOR_GPU = "the script asks for two accelerators; the ranks train on the CPU"
_LENGTH = "the number of iterations is written into the script"
_TOKENIZER = "the tokenizer comes from the net, and only sampling needs it"
_SEED = "the script sets no seed, so that no two of its runs are equal"
_EPOCH_LOSS = r"Loss: ([\d.]+)"
_SFT = (
    "--model_name_or_path", "./model", "--dataset_name", "./lines", "--per_device_train_batch_size", "4",
    "--report_to", "none", "--use_cpu", "--logging_steps", "1", "--output_dir", "out", "--save_strategy", "no",
    "--bf16", "False", "--max_steps", "30", "--disable_tqdm", "True", "--dtype", "float32",
)  # fmt: skip
_ACCELERATE = ("accelerate", "launch", "--num_processes", "2", "--multi_gpu", "--main_process_port", "0",
               "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
_METRIC = r"epoch \d+: .*"
_IMAGE_FILES = "the data set is a download with MD5 sums; files of random images take its place, so that reads can fail"
_LAUNCH = "its ranks are numbered by torchrun's environment, not by an argument"

_UNCONDITIONAL = (
    DIFFUSERS, "examples/unconditional_image_generation", "train_unconditional.py",
    ("--train_data_dir", "images/train", "--model_config_name_or_path", "unet", "--resolution", "32",
     "--train_batch_size", "4", "--num_epochs", "2", "--use_ema", "--output_dir", "out", "--eval_batch_size", "2",
     "--ddpm_num_inference_steps", "4", "--lr_warmup_steps", "5", "--dataloader_num_workers", "1",
     "--checkpointing_steps", "40"), _diffusion,
)  # fmt: skip
_UNCONDITIONAL_DATA: Any = {
    "launcher": _ACCELERATE, "needs": ("src",), "path": "src", "data": "images/train/", "slow_ms": 150, "opens": 40,
}  # fmt: skip

CASES = (
    Case(
        "mnist", EXAMPLES, "mnist", "main.py",
        ("--epochs", "2", "--no-accel", "--log-interval", "1", "--batch-size", "32"), _mnist(960), 60, _EPOCH_LOSS,
        ranks=1, faults=("stop-pulses", "cores-taken", "exception"),
    ),
    Case(
        "mnist_rnn", EXAMPLES, "mnist_rnn", "main.py", ("--epochs", "1", "--log-interval", "1"), _mnist(1920), 30,
        _EPOCH_LOSS, ranks=1, faults=("stop-pulses",), data_bound=True,
    ),
    Case(
        "vae", EXAMPLES, "vae", "main.py", ("--epochs", "1", "--no-accel", "--log-interval", "1", "--batch-size", "64"),
        lambda folder: (material.mnist(folder / ".." / "data", 3840), (folder / "results").mkdir(exist_ok=True))[0],
        60, _EPOCH_LOSS, ranks=1, faults=("cores-taken",), data_bound=True,
    ),
    Case(
        "dcgan", EXAMPLES, "dcgan", "main.py",
        ("--dataset", "folder", "--dataroot", "images", "--workers", "1", "--batchSize", "16", "--ngf", "16", "--ndf",
         "16", "--niter", "3", "--manualSeed", "1"),
        lambda folder: material.image_folder(folder / "images", 256), 48, r"Loss_D: .*", ranks=1, data="images/",
        opens=100, slow_ms=100, faults=("slow-read", "stop-pulses", "missing-file"),
        note="two optimizers in turn; a step is one of each",
    ),
    Case(
        "word_language_model", EXAMPLES, "word_language_model", "main.py",
        ("--data", "corpus", "--model", "Transformer", "--use-optimizer", "--lr", "0.001", "--epochs", "1",
         "--log-interval", "1", "--batch_size", "20"),
        lambda folder: material.wikitext(folder / "corpus", 35 * 20 * 60 + 20), 60, r"(?:valid |test )?loss +[\d.]+",
        ranks=1, needs=("word_language_model/data.py", "word_language_model/model.py"),
        faults=("stop-pulses", "cores-taken", "exception"),
    ),
    Case(
        "mnist_hogwild", EXAMPLES, "mnist_hogwild", "main.py", ("--epochs", "1", "--log-interval", "1"), _mnist(1920),
        30, r"$^", ranks=1, needs=("mnist_hogwild",),
        note="two processes train one shared model without a lock, so that no two runs print the same losses; neither "
        "is a rank of a group",
    ),
    Case(
        "imagenet", EXAMPLES, "imagenet", "main.py",
        ("images", "-a", "squeezenet1_1", "--epochs", "1", "-b", "2", "-j", "1", "--no-accel", "--dist-url", "env://",
         "--dist-backend", "gloo", "--seed", "1", "-p", "1"),
        _images(120), 30, r"Loss (\S+) \(", launcher=TORCHRUN, data="images/train/", slow_ms=500, opens=40, alone=True,
        faults=("slow-read", "slow-read-all", "missing-file", "exception"),
        note="without an accelerator this script wraps no model in DDP: its ranks train alone",
    ),
    Case(
        "fsdp2", EXAMPLES, "distributed/FSDP2", "example.py", (), _nothing, 30, r"$^", launcher=TORCHRUN,
        needs=("distributed/FSDP2",), outputs="checkpoints/*/*/*.pt",
        changes=(
            Change("example.py", "if not verify_min_gpu_count", "if False and not verify_min_gpu_count", _CPU_FOR_GPU),
            Change("example.py", ", device_id=device)", ")", "a CPU has no index to bind the group to"),
            Change("example.py", "for _ in range(10):", "for _ in range(30):", _LENGTH),
            Change("example.py", "batch_size = 32", "batch_size = 2", "two cores"),
            Change("example.py", "model.reset_parameters()",
                   "model.reset_parameters(); [layer.reset_parameters() for layer in model.layers]",
                   "the parameters of its layers are left uninitialised, so that it trains NaN"),
        ),
        faults=ONE_RANK,
    ),
    Case(
        "ddp_tutorial", EXAMPLES, "distributed/ddp-tutorial-series", "multigpu_torchrun.py", ("3", "1"), _nothing, 96,
        r"$^", launcher=(), needs=("distributed/ddp-tutorial-series",), outputs="snapshot.pt",
        changes=(
            Change("multigpu_torchrun.py", 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
                   "torch.manual_seed(0)", f"{_CPU_FOR_GPU}; {_SEED}"),
            Change("multigpu_torchrun.py", "nccl", "gloo", _CPU_FOR_GPU),
            Change("multigpu_torchrun.py", ".to(self.gpu_id)", '.to("cpu")', _CPU_FOR_GPU),
            Change("multigpu_torchrun.py", "self.model, device_ids=[self.gpu_id]", "self.model", _CPU_FOR_GPU),
        ),
        faults=("exception",), note="steps of 3 ms; a batch is fetched to look at before each epoch",
    ),
    Case(
        "mingpt_ddp", EXAMPLES, "distributed/minGPT-ddp/mingpt", "main.py",
        ("data_config.path=text/input.txt", "data_config.block_size=32", "data_config.truncate=1.0",
         "trainer_config.max_epochs=2", "trainer_config.batch_size=16", "trainer_config.data_loader_workers=1",
         "trainer_config.use_amp=False", "trainer_config.save_every=1", "gpt_config.n_layer=2",
         "gpt_config.n_head=4", "gpt_config.n_embd=96"),
        lambda folder: material.characters(folder / "text" / "input.txt", 744), 40, r"(?:Train|Eval) Loss [\d.]+",
        launcher=TORCHRUN, needs=("distributed/minGPT-ddp",), outputs="gpt_snapshot.pt",
        changes=(
            Change("main.py", "if not verify_min_gpu_count", "if False and not verify_min_gpu_count", _CPU_FOR_GPU),
            Change("main.py", "acc = torch.accelerator.current_accelerator()",
                   'acc = torch.device("cpu"); torch.manual_seed(0)', f"{_CPU_FOR_GPU}; {_SEED}"),
            Change("main.py", "    torch.accelerator.set_device_index(rank)\n", "", _CPU_FOR_GPU),
            Change("trainer.py", "torch.accelerator.current_accelerator()", 'torch.device("cpu")', _CPU_FOR_GPU),
            Change("trainer.py", ".to(self.local_rank)", '.to("cpu")', _CPU_FOR_GPU),
            Change("trainer.py", "self.model, device_ids=[self.local_rank]", "self.model", _CPU_FOR_GPU),
        ),
        faults=ONE_RANK,
    ),
    Case(
        "tensor_parallel", EXAMPLES, "distributed/tensor_parallelism", "tensor_parallel_example.py", (), _nothing, 40,
        r"Tensor Parallel iter \d+ completed", launcher=TORCHRUN, needs=("distributed/tensor_parallelism",),
        changes=(
            Change("tensor_parallel_example.py", "if not verify_min_gpu_count",
                   "if False and not verify_min_gpu_count", _CPU_FOR_GPU),
            Change("tensor_parallel_example.py", "torch.accelerator.current_accelerator().type", '"cpu"', _CPU_FOR_GPU),
            Change("tensor_parallel_example.py", "num_iters = 10", "num_iters = 40", _LENGTH),
        ),
        faults=("exception",), note="steps of a few milliseconds; prints no loss",
    ),
    Case(
        "nanogpt", NANOGPT, "", "train.py",
        ("--dataset=chars", "--device=cpu", "--dtype=float32", "--compile=False", "--backend=gloo", "--max_iters=39",
         "--eval_interval=20", "--eval_iters=2", "--gradient_accumulation_steps=2", "--batch_size=4",
         "--block_size=32", "--n_layer=4", "--n_head=4", "--n_embd=128"),
        lambda folder: material.nanogpt(folder / "data" / "chars", 200_000), 40, r"(?:train |val )?loss [\d.]+",
        launcher=TORCHRUN, needs=("model.py", "configurator.py"), data="data/chars/", slow_ms=120, opens=12,
        in_loop=True,
        changes=(
            Change("train.py", "device = f'cuda:{ddp_local_rank}'", "device = 'cpu'", _CPU_FOR_GPU),
            Change("train.py", "    torch.cuda.set_device(device)\n", "", _CPU_FOR_GPU),
            Change("train.py", "DDP(model, device_ids=[ddp_local_rank])", "DDP(model)", _CPU_FOR_GPU),
        ),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "cores-taken", "missing-file"),
        note="a batch comes from a memory map that is opened anew, not from a DataLoader; rank 0 alone evaluates",
    ),
    Case(
        "nanogpt_one", NANOGPT, "", "train.py",
        ("--dataset=chars", "--device=cpu", "--dtype=float32", "--compile=False", "--max_iters=39",
         "--eval_interval=20", "--eval_iters=2", "--gradient_accumulation_steps=4", "--batch_size=4",
         "--block_size=32", "--n_layer=4", "--n_head=4", "--n_embd=128"),
        lambda folder: material.nanogpt(folder / "data" / "chars", 200_000), 40, r"(?:train |val )?loss [\d.]+",
        needs=("model.py", "configurator.py"), data="data/chars/", slow_ms=60, opens=12, ranks=1,
        in_loop=True,
        faults=("slow-read", "stop-pulses"),
    ),
    Case(
        "mingpt_adder", MINGPT, "projects/adder", "adder.py",
        ("--trainer.max_iters=60", "--trainer.num_workers=1"), _nothing, 60, r"train loss [\d.]+|final score: .*",
        needs=("mingpt",), path=".", ranks=1, faults=("exception",), note="evaluates after the first step",
    ),
    Case(
        "dlrm", DLRM, "", "dlrm_s_pytorch.py",
        ("--arch-embedding-size", "1000-1000-1000-1000", "--arch-sparse-feature-size", "16", "--arch-mlp-bot",
         "13-512-256-16", "--arch-mlp-top", "512-256-1", "--data-generation", "random", "--mini-batch-size", "512",
         "--num-batches", "40", "--print-freq", "1", "--loss-function", "bce", "--dist-backend", "gloo"),
        _nothing, 40, r"loss [\d.]+", launcher=TORCHRUN,
        needs=("dlrm_data_pytorch.py", "extend_distributed.py", "mlperf_logger.py", "optim", "tricks", "data_utils.py",
               "data_loader_terabyte.py"),
        faults=ONE_RANK, data_bound=True, note="embeddings are sharded, with all-to-all; the MLPs are in DDP",
    ),
    Case(
        "nlp_example", ACCELERATE, "examples", "nlp_example.py", ("--cpu",), _glue(320), 30, _METRIC,
        launcher=_ACCELERATE, faults=(*ONE_RANK, "cores-taken"),
        note="the model, the data and the metric have the names that the script asks for, as local folders",
    ),
    Case(
        "gradient_accumulation", ACCELERATE, "examples/by_feature", "gradient_accumulation.py",
        ("--cpu", "--gradient_accumulation_steps", "2"), _glue(640), 30, _METRIC, launcher=TORCHRUN,
        faults=("stop-pulses",),
    ),
    Case(
        "local_sgd", ACCELERATE, "examples/by_feature", "local_sgd.py", ("--cpu", "--local_sgd_steps", "4"),
        _glue(320), 30, _METRIC, launcher=(), faults=("exception",),
        note="ranks exchange their parameters every fourth step, and nothing else",
    ),
    Case(
        "cv_example", ACCELERATE, "examples", "cv_example.py", ("--cpu", "--data_dir", "pets"),
        lambda folder: material.pets(folder / "pets", 160), 48, _METRIC, launcher=_ACCELERATE, data="pets/",
        slow_ms=150, opens=40,
        changes=(
            Change("cv_example.py", '"resnet50d", pretrained=True', '"resnet18", pretrained=False',
                   "weights come from a hub; two cores"),
            Change("cv_example.py", '"batch_size": 64, "image_size": 224', '"batch_size": 4, "image_size": 64',
                   "both are written into the script; two cores"),
            Change("cv_example.py", "num_workers=4", "num_workers=1", "two cores"),
        ),
        faults=("slow-read", "slow-read-all", "stop-pulses", "missing-file"),
    ),
    Case(
        "sft", TRL, "trl/scripts", "sft.py", _SFT, _sft(400), 30, r"'loss': '?[\d.]+", launcher=TORCHRUN,
        faults=ONE_RANK,
    ),
    Case(
        "sft_streaming", TRL, "trl/scripts", "sft.py", (*_SFT, "--dataset_streaming", "True"), _sft(400), 30,
        r"'loss': '?[\d.]+", launcher=TORCHRUN, faults=("stop-pulses",),
    ),
    Case(
        "lightning_autoencoder", LIGHTNING, "examples/pytorch/basics", "autoencoder.py",
        ("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.max_epochs",
         "1", "--trainer.limit_train_batches", "40", "--trainer.limit_val_batches", "4",
         "--trainer.limit_test_batches", "4", "--trainer.limit_predict_batches", "2", "--model.hidden_dim", "1024",
         "--data.batch_size", "64", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"),
        lambda folder: material.mnist(folder / ".." / ".." / "Datasets", 60000, 640), 40, r"test_loss[^\d]*[\d.]+",
        changes=(Change("autoencoder.py", "lightning.pytorch.demos.mnist_datamodule", "torchvision.datasets",
                        "Lightning's demo class downloads into the installed package"),),
        faults=ONE_RANK,
    ),
    Case(
        "fabric_image_classifier", LIGHTNING, "examples/fabric/image_classifier", "train_fabric.py",
        ("--epochs", "2", "--batch-size", "16", "--log-interval", "1"),
        lambda folder: material.mnist(folder / ".." / ".." / ".." / "Datasets", 640), 40, _EPOCH_LOSS,
        launcher=("python", "-m", "lightning.fabric.cli", "--accelerator", "cpu", "--devices", "2",
                  "--strategy", "ddp"),
        faults=(*ONE_RANK, "cores-taken"),
    ),
    Case(
        "timm", TIMM, "", "train.py",
        ("--data-dir", "images", "--train-split", "train", "--val-split", "val", "--model", "resnet18", "--img-size",
         "64", "--num-classes", "4", "--device", "cpu", "--no-prefetcher", "-j", "1", "-b", "4", "--epochs", "2",
         "--warmup-epochs", "0", "--log-interval", "1", "--output", "out"),
        _images(160), 40, r"Loss: *([\d.]+)", launcher=TORCHRUN, needs=("timm",),
        data="images/train/", slow_ms=500, opens=40,
        changes=(Change("train.py", "prepare_distributed(device_ids=[device],", "prepare_distributed(device_ids=None,",
                        "DDP takes no index of a CPU"),),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "missing-file"),
    ),
    Case(
        "llm_c", LLM_C, "", "train_gpt2.py",
        ("--input_bin", "shards/*.bin", "--model", "d12", "--batch_size", "4", "--sequence_length", "64",
         "--total_batch_size", "1024", "--num_iterations", "40", "--overfit_single_batch", "0", "--write_tensors", "0",
         "--grad_clip", "1.0", "--zero_stage", "1"),
        lambda folder: material.llm_c_shards(folder / "shards", 8, 513), 40, r"train loss [\d.]+", launcher=TORCHRUN,
        data="shards/", slow_ms=120, opens=50, in_loop=True,
        changes=(
            Change("train_gpt2.py", "    import tiktoken\n", "", _TOKENIZER),
            Change("train_gpt2.py", 'tiktoken.get_encoding("gpt2")', "None", _TOKENIZER),
            Change("train_gpt2.py", "vocab_size=50257, n_layer=12, n_head=12, n_embd=768",
                   "vocab_size=64, n_layer=4, n_head=4, n_embd=128", "two cores"),
            Change("train_gpt2.py", 'torch.cuda.is_available(), "for now', 'True, "for now', _CPU_FOR_GPU),
            Change("train_gpt2.py", "nccl", "gloo", _CPU_FOR_GPU),
            Change("train_gpt2.py", "device = f'cuda:{ddp_local_rank}'", "device = 'cpu'", _CPU_FOR_GPU),
            Change("train_gpt2.py", "        torch.cuda.set_device(device)\n", "", _CPU_FOR_GPU),
            Change("train_gpt2.py", "DDP(model, device_ids=[ddp_local_rank])", "DDP(model)", _CPU_FOR_GPU),
        ),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "cores-taken", "missing-file"),
        note="ZeroRedundancyOptimizer; a shard of its data is opened for every micro-batch",
    ),
    Case(
        "ppo", CLEANRL, "cleanrl", "ppo.py", ("--total-timesteps", "51200", "--no-cuda"), _nothing, 1600, r"$^",
        needs=("cleanrl/ppo.py",), ranks=1, in_loop=True, outputs="agent.pt",
        slow_call="gymnasium.vector.sync_vector_env:SyncVectorEnv.step", slow_ms=3,
        changes=(Change("ppo.py", "    envs.close()\n",
                        "    envs.close()\n    torch.save(agent.state_dict(), 'agent.pt')\n",
                        "it prints no loss and saves nothing"),),
        faults=("stop-pulses", "cores-taken", "exception", "slow-call"),
        note="128 steps of the environments, then 16 steps of the optimizer; no DataLoader",
    ),
    Case(
        "ppo_multigpu", CLEANRL, "cleanrl", "ppo_atari_multigpu.py",
        ("--total-timesteps", "2560", "--no-cuda", "--local-num-envs", "2", "--num-steps", "16", "--num-minibatches",
         "2", "--update-epochs", "2", "--env-id", "ALE/Breakout-v5"), _nothing, 160,
        r"action.sum\(\): .*", launcher=TORCHRUN, needs=("cleanrl_utils",), path=".", in_loop=True,
        slow_call="gymnasium.vector.sync_vector_env:SyncVectorEnv.step", slow_ms=20,
        changes=(
            Change("ppo_atari_multigpu.py", "import gymnasium as gym\n",
                   "import ale_py\nimport gymnasium as gym\ngym.register_envs(ale_py)\n",
                   "gymnasium 1 registers no Atari"),
            Change("ppo_atari_multigpu.py", "gym.make(env_id)", "gym.make(env_id, frameskip=1)",
                   "the environment's old name is gone"),
            Change("ppo_atari_multigpu.py", "GrayScaleObservation(env)", "GrayscaleObservation(env)", "gymnasium 1"),
            Change("ppo_atari_multigpu.py", "FrameStack(env, 4)", "FrameStackObservation(env, 4)", "gymnasium 1"),
        ),
        faults=(*ONE_RANK, "cores-taken", "slow-call"),
        note="gradients are summed with one all-reduce, without DDP; 16 steps of the environments, then 4 steps of the "
        "optimizer; no DataLoader",
    ),
    Case(
        "llama2_c", LLAMA2_C, "", "train.py",
        ("--vocab_source=custom", "--vocab_size=64", "--device=cpu", "--dtype=float32", "--compile=False",
         "--max_iters=39", "--eval_interval=20", "--eval_iters=2", "--gradient_accumulation_steps=4", "--batch_size=4",
         "--max_seq_len=64", "--n_layers=4", "--n_heads=4", "--n_kv_heads=4", "--dim=128", "--warmup_iters=5"),
        lambda folder: material.llama2_c_shards(folder / "data" / "tok64", 12, 64 * 9), 40,
        r"(?:train |val )?loss [\d.]+", launcher=TORCHRUN,
        needs=("model.py", "configurator.py", "tinystories.py", "export.py", "tokenizer.py"), data="data/tok64/",
        slow_ms=150, opens=30,
        changes=(
            Change("train.py", 'backend="nccl"', 'backend="gloo"', _CPU_FOR_GPU),
            Change("train.py", 'device = f"cuda:{ddp_local_rank}"', 'device = "cpu"', _CPU_FOR_GPU),
            Change("train.py", "    torch.cuda.set_device(device)\n", "", _CPU_FOR_GPU),
            Change("train.py", "DDP(model, device_ids=[ddp_local_rank])", "DDP(model)", _CPU_FOR_GPU),
        ),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "missing-file"),
        note="the next batch is fetched between forward and backward, by a DataLoader without workers, and a step has "
        "two micro-batches; rank 0 alone evaluates",
    ),
    Case(
        "pytorch_cifar", PYTORCH_CIFAR, "", "main.py", (), _images(320), 40, r"Loss: [\d.]+",
        needs=("models", "utils.py"), ranks=1, data="images/train/", slow_ms=40, opens=200,
        changes=(
            Change("main.py", "torchvision.datasets.CIFAR10(\n    root='./data', train=True, download=True, ",
                   "torchvision.datasets.ImageFolder('images/train', ", _IMAGE_FILES),
            Change("main.py", "torchvision.datasets.CIFAR10(\n    root='./data', train=False, download=True, ",
                   "torchvision.datasets.ImageFolder('images/val', ", _IMAGE_FILES),
            Change("main.py", "transforms.RandomCrop(32, padding=4)", "transforms.RandomCrop(32)", "larger images"),
            Change("main.py", "transform_test = transforms.Compose([\n",
                   "transform_test = transforms.Compose([transforms.RandomCrop(32),\n", "larger images"),
            Change("main.py", "batch_size=128", "batch_size=16", "two cores"),
            Change("main.py", "num_workers=2", "num_workers=1", "two cores"),
            Change("main.py", "net = SimpleDLA()", "torch.manual_seed(0); net = MobileNetV2()", f"two cores; {_SEED}"),
            Change("main.py", "start_epoch+200", "start_epoch+2", _LENGTH),
            Change("utils.py", "_, term_width = os.popen('stty size', 'r').read().split()", "term_width = 80",
                   "there is no terminal"),
        ),
        faults=("slow-read", "stop-pulses", "cores-taken", "exception", "missing-file"),
    ),
    Case(
        "opacus_mnist", OPACUS, "examples", "mnist.py",
        ("--device", "cpu", "--data-root", "../data", "--epochs", "8", "--batch-size", "32"), _mnist(960), 240,
        r"Loss: [\d.]+", needs=("opacus",), path=".", ranks=1,
        changes=(Change("mnist.py", "    args = parser.parse_args()\n",
                        "    args = parser.parse_args()\n    torch.manual_seed(0)\n", _SEED),),
        faults=("stop-pulses", "cores-taken"),
        note="differential privacy: gradients of each sample, and a wrapped optimizer",
    ),
    Case(
        "opacus_ddp", OPACUS, "examples", "cifar10.py",
        ("--epochs", "2", "--batch-size", "32", "-b", "16", "-j", "1", "-p", "1"), _images(640), 40,
        r"Loss: [\d.]+ Acc@1: [\d.]+", launcher=TORCHRUN, needs=("opacus",), path=".", data="images/train/",
        slow_ms=60, opens=150,
        changes=(
            Change("cifar10.py", "if not torch.cuda.is_available():", "if False:", _CPU_FOR_GPU),
            Change("cifar10.py", "args.local_rank != -1 or", "int(os.environ['LOCAL_RANK']) >= 0 or", _LAUNCH),
            Change("cifar10.py", "elif args.local_rank >= 0:", "elif True:", _LAUNCH),
            Change("cifar10.py", "        device = local_rank\n", "        device = 'cpu'; torch.manual_seed(rank)\n",
                   f"{_CPU_FOR_GPU}; {_SEED}"),
            Change("cifar10.py", "CIFAR10(\n        root=args.data_root, train=True, download=True, ",
                   "ImageFolder('images/train', ", _IMAGE_FILES),
            Change("cifar10.py", "CIFAR10(\n        root=args.data_root, train=False, download=True, ",
                   "ImageFolder('images/val', ", _IMAGE_FILES),
            Change("cifar10.py", "datasets import CIFAR10", "datasets import ImageFolder", _IMAGE_FILES),
        ),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "missing-file"),
        note="differential privacy: the wrapped optimizer reduces the gradients, not DDP, and batches differ in size "
        "(Poisson sampling)",
    ),
    Case(
        "ignite_cifar10", IGNITE, "examples/cifar10", "main.py",
        ("run", "--backend", "gloo", "--data_path", "images", "--output_path", "out", "--batch_size", "16",
         "--num_workers", "2", "--num_epochs", "2", "--num_warmup_epochs", "1", "--log_every_iters", "1"),
        _images(640), 80, r"(?:Loss|Accuracy): [\d.]+", launcher=TORCHRUN, needs=("examples/cifar10", "ignite"),
        path=".", data="images/train/", slow_ms=100, opens=150,
        changes=(
            Change("utils.py", "datasets.CIFAR10(root=path, train=True, download=download, ",
                   "datasets.ImageFolder(path / 'train', ", _IMAGE_FILES),
            Change("utils.py", "datasets.CIFAR10(root=path, train=False, download=False, ",
                   "datasets.ImageFolder(path / 'val', ", _IMAGE_FILES),
            Change("utils.py", "RandomCrop(32, fill=128)", "RandomCrop(32)", "larger images"),
            Change("utils.py", "test_transform = Compose([", "test_transform = Compose([RandomCrop(32), ",
                   "larger images"),
        ),
        faults=("slow-read", "slow-read-all", *ONE_RANK, "cores-taken", "missing-file"),
        note="the training loop is ignite's Engine; after training it evaluates on all training data",
    ),
    Case(
        "diffusers_unconditional", *_UNCONDITIONAL, 40, r"$^", changes=(
            Change("train_unconditional.py", "    accelerator = Accelerator(\n",
                   "    torch.manual_seed(0)\n    accelerator = Accelerator(\n        cpu=True,\n",
                   f"{_CPU_FOR_GPU}; {_SEED}"),
        ),
        outputs="out/checkpoint-40/optimizer.bin", **_UNCONDITIONAL_DATA,
        faults=("slow-read", "slow-read-all", *ONE_RANK, "missing-file"),
        note="exponential moving average of the weights; after each epoch rank 0 generates images",
    ),
    Case(
        "diffusers_alone", *_UNCONDITIONAL, 80, r"$^", changes=(
            Change("train_unconditional.py", "    accelerator = Accelerator(\n",
                   "    torch.manual_seed(0)\n    accelerator = Accelerator(\n", _SEED),
        ),
        outputs="out/checkpoint-80/optimizer.bin", **_UNCONDITIONAL_DATA, alone=True,
        note="as its user starts it on a machine without a GPU: Accelerate initialises a group of both processes and "
        "then takes each for the only one, which trains a model of its own on all the data",
    ),
    Case(
        "pyg_gin", PYG, "examples/pytorch_lightning", "gin.py", (),
        lambda folder: material.tu_graphs(folder / "data" / "TUDataset" / "IMDB-BINARY" / "raw", "IMDB-BINARY", 1600),
        80, r"test_acc[^\d]*[\d.]+", needs=("torch_geometric",), path=".",
        changes=(
            Change("gin.py", "import pytorch_lightning as pl\n",
                   "import lightning.pytorch as pl\npl.seed_everything(0)\n", f"the package's other name; {_SEED}"),
            Change("gin.py", "batch_size=64, num_workers=4", "batch_size=32, num_workers=1", "two cores"),
            Change("gin.py", "torch.cuda.device_count()", "2", _CPU_FOR_GPU),
            Change("gin.py", "DDPStrategy(accelerator='gpu')", "DDPStrategy()", _CPU_FOR_GPU),
            Change("gin.py", "pl.Trainer(", "pl.Trainer(accelerator='cpu', enable_progress_bar=False, ", _CPU_FOR_GPU),
            Change("gin.py", "max_epochs=50", "max_epochs=4", _LENGTH),
        ),
        faults=ONE_RANK, note="a graph network under Lightning; batches are graphs of different sizes",
    ),
    Case(
        "lbfgs_sequence", EXAMPLES, "time_sequence_prediction", "train.py", ("--steps", "20"),
        lambda folder: material.sine_waves(folder / "traindata.pt", 30, 60), 20, r"loss: [\d.e-]+", ranks=1,
        needs=("time_sequence_prediction/train.py",),
        changes=(Change("train.py", "torch.load('traindata.pt')", "torch.load('traindata.pt', weights_only=False)",
                        "torch 2.6 and newer load no array of NumPy otherwise"),),
        faults=("stop-pulses", "cores-taken", "exception"),
        note="LBFGS: a step of the optimizer calls forward and backward up to 20 times; each step draws a figure",
    ),
)  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
