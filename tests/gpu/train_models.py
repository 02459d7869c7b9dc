"""Train the small models of the GPU runs: a Llama that continues a periodic token sequence, and its EAGLE-3 draft.

    python3 tests/gpu/train_models.py OUT_DIR      # one CUDA GPU, about two minutes on an H200

The task is to continue a sequence that repeats with a period of 4 to 24 random tokens. Each step has to look back one
period, so a wrong or missing KV entry changes the greedy output at once, and correct outputs are decided by wide
margins: two correct servers agree token by token. The draft reads the inputs of decoder layers 2, L // 2 and L - 3,
which is what SGLang captures for EAGLE-3 (L >= 7, or two of them coincide).

Also written: configurations without weights, for timing with `--load-format dummy`: `big`, shaped like an 8B Llama, and
its draft `bigdraft`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  the name everybody uses
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

VOCAB, HIDDEN, LAYERS, HEADS, INNER = 1024, 256, 7, 4, 768
FIRST_TOKEN, LONGEST_PERIOD = 16, 24
CAPTURED_LAYERS = (2, LAYERS // 2, LAYERS - 3)
TARGET_STEPS, DRAFT_STEPS = 3600, 900
DEVICE = "cuda"


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="bfloat16",
    )


def periodic(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids [batch, length], and a mask of the positions that the pattern decides (from the second period on)."""
    period = torch.randint(4, LONGEST_PERIOD + 1, (batch, 1), device=DEVICE)
    pattern = torch.randint(FIRST_TOKEN, VOCAB, (batch, LONGEST_PERIOD), device=DEVICE)
    position = torch.arange(length, device=DEVICE)[None]
    return pattern.gather(1, position % period), position >= period


def loss_where(mask: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    each = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
    return (each * mask.flatten()).sum() / mask.sum()


def steps(
    module: nn.Module, count: int, warmup: int, decay: float
) -> Iterator[tuple[int, Callable[[Tensor], None]]]:
    """Step numbers, each with a function that takes one optimizer step down a cosine schedule."""
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=decay, fused=True
    )
    for number in range(count):
        cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * number / count))
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, number / warmup) * cosine

        def learn(loss: Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

        yield number, learn


def train_target() -> LlamaForCausalLM:
    target = LlamaForCausalLM(config()).to(DEVICE)
    for number, learn in steps(target, TARGET_STEPS, warmup=100, decay=0.01):
        long = number >= 0.85 * TARGET_STEPS  # the last part on sequences as long as those served
        tokens, mask = periodic(40, 512) if long else periodic(128, 128)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = target(tokens[:, :-1]).logits
        loss = loss_where(mask[:, 1:], logits, tokens[:, 1:])
        learn(loss)
        if number % 500 == 0:
            print(f"target {number}: loss {loss.item():.4f}", flush=True)
    return target.to(torch.bfloat16).eval().requires_grad_(False)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return scaled.to(x.dtype) * self.weight.to(x.dtype)


class Draft(nn.Module):
    """One EAGLE-3 layer. (embeddings, features) [batch, length, HIDDEN] -> logits, next features."""

    def __init__(self) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.fc, self.lm_head = linear(3 * HIDDEN, HIDDEN), linear(HIDDEN, VOCAB)
        self.q_proj, self.k_proj, self.v_proj = (linear(2 * HIDDEN, HIDDEN) for _ in range(3))
        self.o_proj = linear(HIDDEN, HIDDEN)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (
            Norm() for _ in range(4)
        )
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(HIDDEN, INNER),
            linear(HIDDEN, INNER),
            linear(INNER, HIDDEN),
        )
        self.rotary = LlamaRotaryEmbedding(config())

    def forward(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = embeddings.shape
        both = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(features)], -1)
        heads = (batch, length, HEADS, HIDDEN // HEADS)
        q, k, v = (
            project(both).view(heads).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        positions = torch.arange(length, device=embeddings.device)[None]
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(embeddings, positions))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        features = features + self.o_proj(seen.transpose(1, 2).reshape(batch, length, HIDDEN))
        normed = self.post_attention_layernorm(features)
        features = features + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return self.lm_head(self.norm(features)), features

    def weights(self) -> dict[str, Tensor]:
        """Under the names that SGLang's LlamaForCausalLMEagle3 loads."""
        attention, mlp = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
        inside = {name: f"midlayer.self_attn.{name}" for name in attention} | {
            name: f"midlayer.mlp.{name}" for name in mlp
        }
        inside |= {
            name: f"midlayer.{name}"
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        }
        modules = dict(self.named_children())
        modules.pop("rotary")
        return {
            f"{inside.get(name, name)}.weight": module.weight.detach().to(torch.bfloat16).contiguous().cpu()
            for name, module in modules.items()
        }


def train_draft(target: LlamaForCausalLM) -> Draft:
    draft = Draft().to(DEVICE)
    for number, learn in steps(draft, DRAFT_STEPS, warmup=50, decay=0.01):
        tokens, mask = periodic(96, 160)
        with torch.no_grad():
            layers = target(tokens, output_hidden_states=True).hidden_states
            captured = torch.cat([layers[i] for i in CAPTURED_LAYERS], -1)
        with torch.autocast(DEVICE, torch.bfloat16):
            embeddings = target.model.embed_tokens(tokens)
            first, features = draft(embeddings[:, 1:], draft.fc(captured[:, :-1]))
            second, _ = draft(
                embeddings[:, 2:], features[:, :-1]
            )  # the next draft step runs on the draft's own features
        loss = loss_where(mask[:, 2:], first[:, :-1], tokens[:, 2:])
        loss = loss + 0.7 * loss_where(mask[:, 3:], second[:, :-1], tokens[:, 3:])
        learn(loss)
        if number % 200 == 0:
            right = ((first[:, :-1].argmax(-1) == tokens[:, 2:]) * mask[:, 2:]).sum() / mask[:, 2:].sum()
            print(f"draft {number}: loss {loss.item():.3f}, right {right.item():.3f}", flush=True)
    return draft


def write_config(folder: Path, **settings: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shared = {
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(
        json.dumps({**shared, "bos_token_id": 1, "eos_token_id": 2, **settings}, indent=1)
    )


def write_shapes(out: Path) -> None:
    """Configurations alone: an 8B-shaped target and a draft for it."""
    shape = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
    }
    write_config(out / "big", architectures=["LlamaForCausalLM"], num_hidden_layers=32, **shape)
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    write_config(out / "bigdraft", **draft, **shape)


def main(out: Path) -> None:
    torch.manual_seed(0)
    target = train_target()
    target.save_pretrained(out / "target")
    draft = train_draft(target)
    write_config(
        out / "draft",
        architectures=["LlamaForCausalLMEagle3"],
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
    )
    save_file(draft.weights(), out / "draft" / "model.safetensors")
    write_shapes(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
