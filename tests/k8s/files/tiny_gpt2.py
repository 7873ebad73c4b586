"""Make a tiny GPT-2 and a tokenizer in folders, or compute the loss of one: in the worker image.

tiny_gpt2.py make FOLDER JSONL     FOLDER/model, and FOLDER/tokenizer of the words of a JSONL file
tiny_gpt2.py loss FOLDER JSONL N   print the mean loss of FOLDER by transformers alone, in sequences of N
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

END = "<|end|>"


def make(folder: Path, texts: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END)
    tokenizer.save_pretrained(folder / "tokenizer")
    torch.manual_seed(1)
    end = tokenizer.eos_token_id
    shape = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=end,
        eos_token_id=end,
    )
    GPT2LMHeadModel(shape).save_pretrained(folder / "model")


def loss(folder: Path, texts: list[str], length: int) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    assert not any(loading_info.values()), loading_info
    model.eval()
    tokens: list[int] = []
    for text in texts:
        tokens += [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    total = 0.0
    for first in range(0, len(tokens) - 1, length):
        row = torch.tensor([tokens[first : first + length + 1]])
        with torch.no_grad():
            logits = model(input_ids=row[:, :-1]).logits
        total += float(torch.nn.functional.cross_entropy(logits[0], row[0, 1:], reduction="sum").double())
    return total / (len(tokens) - 1)


if __name__ == "__main__":
    folder, lines = Path(sys.argv[2]), Path(sys.argv[3]).read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    if sys.argv[1] == "make":
        make(folder, texts)
    else:
        print(json.dumps({"loss": loss(folder, texts, int(sys.argv[4]))}))
