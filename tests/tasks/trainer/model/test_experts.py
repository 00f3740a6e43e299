"""A mixture of experts computes what others compute, counts loads, and balances them; see also test_model_folder."""

import torch
import torch.nn.functional as F

from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.interchange.huggingface import llama_config, llama_name
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.experts import DEAD, LOAD, Loads, Mixture, grouped_product
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.optim import build_optimizer, orthogonalize
from tests.late import transformers

VOCABULARY, TOKENS = 60, 48
EXPERTS = ExpertsConfig(count=8, per_token=2, width=16, loss_weight=0.02)


def model_of(experts: ExpertsConfig) -> Transformer:
    config = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, qk_norm=True, head_width=16, experts=experts)
    model = build(config, VOCABULARY, 1)
    for layer in model.layers.values():  # so that the choice is not close, and not equal between layers
        layer.ffn.router.weight.data.mul_(4)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    return tokens[:, :-1], torch.zeros_like(tokens[:, :-1]), tokens[:, 1:]


def mixture_of(config: ExpertsConfig, dim: int = 16) -> Mixture:
    mixture, generator = Mixture(dim, config, None), torch.Generator().manual_seed(3)
    for weight in mixture.parameters():
        weight.data.normal_(0, 0.3, generator=generator)
    return mixture


def test_a_training_step_has_the_weights_of_one_of_qwen3_moe() -> None:
    ours = model_of(EXPERTS)
    content = llama_config(ours.config, VOCABULARY, TOKENS, 0)
    theirs = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**content, experts_implementation="eager"))
    state = theirs.state_dict()
    for name, weight in ours.state_dict().items():
        stem = llama_name(name)
        if "experts.w1" in name:  # transformers keeps both matrices of all experts as one
            up = ours.state_dict()[name.replace("w1", "w3")]
            state[stem.replace(".{}.gate_proj.weight", ".gate_up_proj")].copy_(torch.cat((weight, up), dim=1))
        elif "experts.w2" in name:
            state[stem.replace(".{}.down_proj.weight", ".down_proj")].copy_(weight)
        elif "experts" not in name:
            state[stem].copy_(weight)
    tokens, documents, labels = batch()
    out = theirs(tokens, output_router_logits=True)
    # The balance loss of Mixtral is over all layers at once; that of each layer is 2, the experts of a token, as large.
    balance = sum(_balance_loss(scores, 2) for scores in out.router_logits)
    whole = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten()) + EXPERTS.loss_weight * balance
    whole.backward()
    loss = ours.loss(tokens, documents, labels)
    loss.backward()
    torch.testing.assert_close(loss / labels.numel(), whole - EXPERTS.loss_weight * balance, atol=1e-5, rtol=0)
    found = dict(theirs.named_parameters())
    optimizer = build_optimizer(dict(ours.named_parameters()), TrainConfig(model=ours.config, optim=OptimConfig()))
    other = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer.decay = dict.fromkeys(optimizer.decay, 0.0)
    for weight in ours.parameters():
        weight.grad /= labels.numel()
    pairs = [
        ("layers.1.ffn.router.weight", "model.layers.1.mlp.gate.weight", slice(None)),
        ("layers.0.ffn.experts.w1.weight", "model.layers.0.mlp.experts.gate_up_proj", (slice(None), slice(16))),
        ("layers.1.ffn.experts.w2.weight", "model.layers.1.mlp.experts.down_proj", slice(None)),
        ("layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight", slice(None)),
    ]
    mine = dict(ours.named_parameters())
    for name, name_there, part in pairs:
        torch.testing.assert_close(mine[name].grad, found[name_there].grad[part], atol=1e-5, rtol=1e-4, msg=name)
    optimizer.step(1e-2)
    other.step()
    for name, name_there, part in pairs:
        gradient = mine[name].grad.abs() > 1e-5  # AdamW divides smaller ones by their rounding
        torch.testing.assert_close(mine[name][gradient], found[name_there][part][gradient], atol=1e-4, rtol=0, msg=name)


def _balance_loss(scores: torch.Tensor, per_token: int) -> torch.Tensor:
    shares = scores.float().softmax(-1)
    chosen = F.one_hot(shares.topk(per_token).indices, shares.shape[-1]).sum(1).float()
    return (chosen.mean(0) / per_token * shares.mean(0)).sum() * shares.shape[-1]


def test_every_router_gives_each_token_the_weighted_sum_of_its_experts() -> None:
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(4))
    for router in ("softmax", "sigmoid", "chosen"):
        config = ExpertsConfig(count=5, per_token=2, width=8, router=router, normalize=router == "sigmoid")
        mixture = mixture_of(config)
        routing, expected = mixture.router(x.flatten(0, 1)), torch.zeros(21, 16)
        for token, row in enumerate(x.flatten(0, 1)):
            for expert, weight in zip(routing.choice[token].tolist(), routing.weights[token], strict=True):
                w1, w2, w3 = (getattr(mixture.experts, name).weight[expert] for name in ("w1", "w2", "w3"))
                expected[token] += weight * (w2 @ (F.silu(w1 @ row) * (w3 @ row)))
        torch.testing.assert_close(mixture(x).flatten(0, 1), expected, atol=1e-5, rtol=1e-5, msg=router)
        total = routing.weights.sum(dim=1)
        assert torch.allclose(total, torch.ones(21)) == (router != "softmax")


def test_experts_with_biases_and_a_clamp_compute_those_of_gpt_oss() -> None:
    config = ExpertsConfig(count=4, per_token=2, width=8, router="chosen", bias=True, clamp=0.5)
    mixture, sizes = mixture_of(config), {"hidden_size": 16, "intermediate_size": 8, "num_local_experts": 4}
    oss = transformers.GptOssConfig(**sizes, num_experts_per_tok=2, swiglu_limit=0.5, experts_implementation="eager")
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    theirs, ours = GptOssMLP(oss), mixture.experts
    with torch.no_grad():
        theirs.router.weight.copy_(mixture.router.weight)
        theirs.router.bias.copy_(mixture.router.bias)
        theirs.experts.gate_up_proj.copy_(torch.stack((ours.w1.weight, ours.w3.weight), dim=2).flatten(1, 2).mT)
        theirs.experts.gate_up_proj_bias.copy_(torch.stack((ours.w1.bias, ours.w3.bias), dim=2).flatten(1, 2))
        theirs.experts.down_proj.copy_(ours.w2.weight.mT)
        theirs.experts.down_proj_bias.copy_(ours.w2.bias)
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(mixture(x), theirs(x)[0], atol=1e-6, rtol=1e-5)


def test_the_kernel_for_groups_gives_the_products_of_the_loop() -> None:
    rows, weight = torch.randn(11, 16), torch.randn(4, 8, 16)
    counts = torch.tensor([3, 0, 7, 1])
    kernel = F.grouped_mm(rows, weight.mT, offs=counts.cumsum(0, dtype=torch.int32))
    torch.testing.assert_close(grouped_product(rows, weight, counts), kernel)


def test_loads_are_counted_once_a_backward_pass_and_biases_equalize_them() -> None:
    config = ExpertsConfig(count=8, per_token=2, width=8, balance="bias", bias_rate=0.01)
    model = ModelConfig(layers=1, dim=16, heads=2, kv_heads=1, experts=config)
    mixture, x = mixture_of(config), torch.randn(1, 256, 16, generator=torch.Generator().manual_seed(6))
    mixture.router.weight.data.add_(0.2 * torch.arange(8)[:, None] * x.mean((0, 1)))
    layer = torch.nn.Module()
    layer.ffn = mixture
    loads, found = Loads(model, {"0": layer}.items()), []
    for _ in range(60):
        mixture(x)  # without a backward pass
        torch.utils.checkpoint.checkpoint(mixture, x, use_reentrant=False).sum().backward()
        loads.set(loads.take().tolist())
        assert loads.table is not None
        assert int(loads.table[0, :-1].sum()) == 2 * 256
        found.append(loads.metrics()[LOAD])
        loads.update()
    assert found[-1] < 1.15 < found[0]
    assert loads.metrics()[DEAD] == 0
    assert loads.layers == 1


def test_muon_treats_every_expert_as_a_matrix_of_its_own() -> None:
    stacked = torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(7))
    one_each = torch.stack([orthogonalize(matrix, torch.float32) for matrix in stacked])
    torch.testing.assert_close(orthogonalize(stacked, torch.float32), one_each, atol=1e-5, rtol=1e-5)
    weight = torch.nn.Parameter(stacked.clone())
    weight.grad = stacked.clone()
    run = TrainConfig(optim=OptimConfig(name="muon", weight_decay=0.0))
    build_optimizer({"layers.0.ffn.experts.w1.weight": weight}, run).step(1.0)
    steps = (stacked - weight.detach()) / one_each
    torch.testing.assert_close(steps, torch.full_like(steps, 0.2 * 10**0.5), atol=1e-3, rtol=1e-3)
