"""A small tokenizer in a folder, so that a peer needs no model hub: `python make_tokenizer.py FOLDER`."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
lines = [
    " ".join(["hello", *(syllables[(n * k) % 60] + syllables[(n + k) % 60] for k in range(1, 30))])
    for n in range(300)
]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
tokenizer.train_from_iterator(lines, trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=32768
)
fast.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
fast.save_pretrained(folder)
(folder / "config.json").write_text(
    json.dumps({"model_type": "llama", "vocab_size": len(fast), "hidden_size": 64})
)
