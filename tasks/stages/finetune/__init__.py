"""The stages `examples` and `finetune`: a trained model learns from instructions or preferences."""
