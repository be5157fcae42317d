"""Texts of several scripts and lengths, from one letter to far over the demo model's 256 tokens."""

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A",
    "Hello, world!",
    "如何更换花呗绑定银行卡?",
    "这是一个很长的中文句子,用来测试模型在不同长度下的表现。",
    "東京は日本の首都です。",
    "서울은 대한민국의 수도이다.",
    "Москва — столица России.",
    "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.",
    "القاهرة هي عاصمة مصر.",
    "ירושלים היא עיר עתיקה.",
    "नई दिल्ली भारत की राजधानी है।",
    "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
    "Größe, naïve café, Ünïcödé, ß",
    "MIXED case AND lower CASE",
    "emoji 😀 and 👩‍👩‍👧 family",
    "e\u0301 combining and é composed",
    "full-width ＡＢＣ１２３",
    "code: def f(x): return x ** 2  # comment",
    "https://example.org/path?query=1&other=two#fragment",
    "1234567890 3.14159 -42 1e-9",
    "tab\tand\nnewline\r\nand   spaces",
    "punctuation!?;:,.()[]{}<>\"'`~@#$%^&*-_=+|\\/",
    "x" * 150,
    "zero\u200bwidth\u200band\u0000nul",
]
LONG = [" ".join(f"word{i} river {i * 7 % 13} house" for i in range(words)) for words in (4, 8, 12, 20, 28, 36, 45, 50)]
RAMP = [" ".join(["tree"] * words) for words in (1, 5, 14, 15, 30, 62, 126)]
TEXTS = SENTENCES + LONG + RAMP
assert len(TEXTS) == len(set(TEXTS)) == 40
