"""Writes a model folder of m3e-base's shape with random weights and a tokenizer of the same size.

    python bert_base.py FOLDER

BERT-base with 21,128 tokens, as Chinese models have them: special tokens, Latin letters and CJK characters. Random
weights are a harder test of rounding than trained ones are, and need no download. Needs torch and transformers.
"""

import json
import string
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

VOCABULARY = 21_128
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SEED = 20_240_603


def vocabulary() -> list[str]:
    """Special tokens, printable characters alone and as continuations, then CJK from its start."""
    printable = [character for character in string.printable.lower() if not character.isspace()]
    words = [*SPECIAL, *dict.fromkeys(printable), *(f"##{one}" for one in string.ascii_lowercase + string.digits)]
    return words + [chr(0x4E00 + index) for index in range(VOCABULARY - len(words))]


def tokenizer() -> Tokenizer:
    """BERT's steps over that vocabulary."""
    numbers = {word: index for index, word in enumerate(vocabulary())}
    made = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(list(SPECIAL))
    return made


def main(folder: Path) -> None:
    """Write the folder."""
    torch.manual_seed(SEED)
    BertModel(BertConfig(vocab_size=VOCABULARY), add_pooling_layer=False).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "pad_token": "[PAD]"})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
