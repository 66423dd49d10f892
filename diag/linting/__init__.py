"""What is wrong or misunderstood in a configuration of DeepSpeed, Accelerate, Transformers or torchtitan."""
