"""The fields of Transformers' TrainingArguments, of versions 4 and 5."""

from __future__ import annotations

KNOWN = frozenset({
    "output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "optim", "optim_args", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "optim_target_modules", "gradient_accumulation_steps",
    "average_tokens_across_devices", "max_grad_norm", "label_smoothing_factor", "bf16", "fp16", "bf16_full_eval",
    "fp16_full_eval", "fp16_opt_level", "fp16_backend", "half_precision_backend", "tf32", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode",
    "use_liger_kernel", "liger_kernel_config", "use_cache", "neftune_noise_alpha", "torch_empty_cache_steps",
    "auto_find_batch_size", "logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node",
    "logging_nan_inf_filter", "include_num_input_tokens_seen", "log_level", "log_level_replica", "disable_tqdm",
    "report_to", "run_name", "project", "trackio_space_id", "eval_strategy", "evaluation_strategy", "eval_steps",
    "eval_delay", "per_device_eval_batch_size", "prediction_loss_only", "eval_on_start", "eval_do_concat_batches",
    "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics",
    "save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit", "save_safetensors",
    "enable_jit_checkpoint", "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy",
    "hub_always_push", "hub_revision", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
    "ignore_data_skip", "restore_callback_states_from_checkpoint", "full_determinism", "seed", "data_seed", "use_cpu",
    "no_cuda", "accelerator_config", "parallelism_config", "dataloader_drop_last", "dataloader_num_workers",
    "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor", "remove_unused_columns",
    "label_names", "train_sampling_strategy", "group_by_length", "length_column_name", "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_backend", "ddp_timeout", "fsdp", "fsdp_config",
    "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "deepspeed", "debug", "skip_memory_metrics",
    "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "logging_dir", "local_rank", "adafactor",
    "overwrite_output_dir", "past_index", "jit_mode_eval", "use_ipex", "use_mps_device", "torchdynamo", "ray_scope",
    "tpu_num_cores", "tpu_metrics_debug", "include_tokens_per_second", "include_inputs_for_metrics", "mp_parameters",
    "split_batches", "dispatch_batches", "push_to_hub_model_id", "push_to_hub_organization",
    "push_to_hub_token",
})  # fmt: skip

# Such that no other format has them: two of these make a file TrainingArguments.
TELLING = frozenset({
    "output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "max_steps",
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "weight_decay", "max_grad_norm",
    "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "logging_steps", "save_steps",
    "save_strategy", "eval_strategy", "evaluation_strategy", "report_to", "optim", "seed", "dataloader_num_workers",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "torch_compile", "tf32",
})  # fmt: skip
