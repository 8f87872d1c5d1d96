"""Files as people have them: each is read as it was written, or refused in one sentence."""

import csv
import gzip
import io
import json
import zipfile
from xml.sax.saxutils import escape

import pyarrow
import pytest
from pyarrow import parquet
from pyarrow.feather import write_feather

from regard.api.evaluate_pairs import check_pairs
from regard.data import BadLines, read_pairs
from regard.data.file_formats import choose_numbers
from regard.data.pairs import column_names, run_columns
from regard.errors import DataError
from regard.tasks.inputs.text import text_sources
from regard.tasks.settings import SourceFiles

TEXTS = ["a fine film", "dull, and long", 'he said "no"', "über; naïve", "not\nfor me", "so so"]
ROWS = [(f"{text} {i}", ("good", "bad")[i % 2]) for i, text in enumerate(TEXTS * 2)]
PLAIN = [(text.replace("\n", " ").replace('"', "'"), label) for text, label in ROWS]
BILINGUAL = [(f"你好，世界{i}", f"مرحبا {i}") for i in range(7)]
LABELS = [(text, str(i % 2)) for i, (text, _) in enumerate(ROWS)]
NUMBERS = [(text, f"{i / 4}") for i, (text, _) in enumerate(ROWS)]
RAGGED = "line 3: the line has 4 columns where the first one has 3: add what is missing, or put"
PASSAGE, ASKED = "Ada wrote it in 1843.", "Who wrote it?"


def delimited(rows, header=(), delimiter=",", **how):
    """The bytes that Python's writer makes of rows, as pandas does."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", **how)
    writer.writerows([header] * bool(header) + [*rows])
    return file.getvalue().encode()


def lines(rows, *header):
    """Tab-separated lines without quotes."""
    return "".join("\t".join(row) + "\n" for row in [header] * bool(header) + [*rows]).encode()


def objects(rows, *names, **more):
    return "".join(json.dumps({**dict(zip(names, r, strict=True)), **more}) + "\n" for r in rows)


def table(**columns):
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def feather(**columns):
    file = io.BytesIO()
    write_feather(pyarrow.table(columns), file)
    return file.getvalue()


def arrow_stream(**columns):
    """What a cache of the package datasets holds."""
    file, content = io.BytesIO(), pyarrow.table(columns)
    with pyarrow.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content)
    return file.getvalue()


def zipped(**files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return file.getvalue()


SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def workbook(*sheets, places=True):
    """The least that is a workbook of Excel: texts in line, and numbers."""
    numbers = range(1, len(sheets) + 1)
    book = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="r{n}"/>' for n in numbers)
    files = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/'
        'content-types"><Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r" '
        f'Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets>{book}</sheets>'
        "</workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}">'
        + "".join(
            f'<Relationship Id="r{n}" Type="{OFFICE}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in numbers
        )
        + "</Relationships>",
    }
    for n, rows in enumerate(sheets, start=1):
        lines = []
        for y, row in enumerate(rows, start=1):
            cells = []
            for x, value in enumerate(row):
                at = f' r="{chr(65 + x)}{y}"' if places else ""
                text = f"<is><t>{escape(str(value))}</t></is>"
                number = f"<c{at}><v>{value}</v></c>"
                plain = isinstance(value, str)
                cells.append(f'<c{at} t="inlineStr">{text}</c>' if plain else number)
            lines.append(f'<row r="{y}">{"".join(cells)}</row>')
        sheet = f'<worksheet xmlns="{SHEET}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        files[f"xl/worksheets/s{n}.xml"] = sheet
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def squad(answers, **more):
    asked = [{"id": "7", "question": ASKED, "answers": answers}]
    asked += [{"id": "8", "question": "Why?", "answers": [], **more}] if more else []
    part = {"title": "Ada", "paragraphs": [{"context": PASSAGE, "qas": asked}]}
    return {"version": "1.1", "data": [part]}


def sentences(line, comment=""):
    """A line for each token, its tag and its place, and an empty one after each sentence."""
    found = []
    for words, tags in TAGGED_WORDS:
        rows = zip(words.split(), tags.split(), range(1, 9), strict=False)
        found += [*comment.split("\n")[: len(comment)], *(line.format(*row) for row in rows), ""]
    return ("\n".join(found) + "\n").encode()


with_id = [(str(i), *row) for i, row in enumerate(ROWS)]
MANY = [(f"{text} {i}", label) for i, (text, label) in enumerate(PLAIN * 2)]
HEADER = ("text", "label")
TEXT_COLUMN, LABEL_COLUMN = zip(*ROWS, strict=True)
GERMAN = [(f"Ein schöner Film für Groß und Klein {i}", ("gut", "übel")[i % 2]) for i in range(7)]
FRENCH = [(f"où est passé l\u2019été n° {i}", ("café", "thé")[i % 2]) for i in range(7)]
CHINESE = [(f"这部电影真的很好看，我喜欢{i}", ("好", "坏")[i % 2]) for i in range(7)]
JAPANESE = [(f"この映画はとても面白いです{i}", ("良い", "悪い")[i % 2]) for i in range(7)]
RUSSIAN = [(f"вот плохое кино {i}", ("да", "нет")[i % 2]) for i in range(7)]
COMMENTS = [
    (i, f"Kommentar {i}: das war gut, und zwar sehr", f"2024-01-{i % 5 + 1:02}", "A", i % 3 + 1)
    for i in range(20)
]
COMMENT_NAMES = ("Nr", "Kommentar", "Datum", "Quelle", "Sterne")
COMMENTED = [(row[1], str(row[4])) for row in COMMENTS]
TAGGED_WORDS = [("Ann met Bob Lee", "PER O PER PER"), ("Bob slept", "PER O")] * 2
LONG = [(f"word {i}", f"Wort {i}") for i in range(7)]
TAGGED = [(f"post number {i}", ("a", "b", "a;b", "b;c")[i % 4]) for i in range(12)]
RECORDS = [{"text": text, "label": label} for text, label in ROWS]
WORD = "x" * 300
PNG = b"\x89PNG\r\n"
#: name of the file, its content, and what is read, or a part of the sentence that refuses it;
#: then a part of what is said
FILES = {
    "tsv": ("x.tsv", lines(PLAIN), PLAIN),
    "tsv with names": ("x.tsv", lines(PLAIN, *HEADER), PLAIN),
    "tsv, target first": ("x.tsv", lines([r[::-1] for r in PLAIN], "label", "text"), PLAIN),
    "tsv with other names": ("x.tsv", lines(LABELS[:4], "Satz", "Wert"), LABELS[:4]),
    "tsv of words and names": ("x.txt", lines(PLAIN, "Satz", "Label"), PLAIN),
    "tsv with ids": ("x.tsv", lines([r for r in with_id if "\n" not in r[1]], "id", *HEADER),
                     [r for r in ROWS if "\n" not in r[0]]),
    "tsv of languages": ("x.tsv", lines(BILINGUAL, "zh", "ar"), BILINGUAL),
    "tsv with a bom": ("x.tsv", b"\xef\xbb\xbf" + lines(PLAIN, *HEADER), PLAIN),
    "tsv with crlf": ("x.tsv", lines(PLAIN, *HEADER).replace(b"\n", b"\r\n"), PLAIN),
    "tsv, empty lines at the end": ("x.tsv", lines(PLAIN, *HEADER) + b"\n\n", PLAIN),
    "tsv, empty line": ("x.tsv", b"a\tb\n\nc\td\n", "line 2: the line is empty"),
    "tsv, three columns": ("x.tsv", lines(with_id[:2]), "3 columns where 2 are expected"),
    "tsv in utf-16": ("x.tsv", lines(PLAIN).decode().encode("utf-16"), PLAIN, "read as utf-16"),
    "tsv in latin-1": ("x.tsv", lines(FRENCH).decode().encode("cp1252"), FRENCH, "read as cp1252"),
    "tsv with nul": ("x.tsv", b"a\tb\nc\0\td\n", "line 2: there is a NUL byte"),
    "tsv with a long word": ("x.tsv", lines([(WORD, "x")]), [(WORD, "x")]),
    "tsv, label first": ("x.tsv", lines([row[::-1] for row in MANY]), MANY,
                         "the source is column 1 (from 0) and the target is column 0 (from 0)"),
    "tsv, label first, other names": ("x.tsv", lines([r[::-1] for r in MANY], "Urteil", "Satz"),
                                      MANY, "the source is Satz and the target is Urteil"),
    "tsv, header alone": ("x.tsv", b"text\tlabel\n", "there are no pairs in it"),
    "empty file": ("x.csv", b"", "there are no pairs in it"),
    "txt with semicolons": ("x.txt", delimited(PLAIN, HEADER, delimiter="|"), PLAIN),
    "tsv without tabs": ("x.txt", b"one text\nand another\n", "there is no tab between source"),
    "csv": ("x.csv", delimited(ROWS), ROWS),
    "csv with names": ("x.csv", delimited(ROWS, HEADER), ROWS),
    "csv, all quoted": ("x.csv", delimited(ROWS, HEADER, quoting=csv.QUOTE_ALL), ROWS),
    "csv, compressed": ("x.csv.gz", gzip.compress(delimited(ROWS, HEADER)), ROWS),
    "csv with a bom and crlf": (
        "x.csv", b"\xef\xbb\xbf" + delimited(PLAIN, HEADER).replace(b"\n", b"\r\n"), PLAIN),
    "csv with ids": ("x.csv", delimited(with_id, ("id", *HEADER)), ROWS),
    "csv of pandas with its index": ("x.csv", delimited(with_id, ("", *HEADER)), ROWS),
    "csv with numbers": ("x.csv", delimited(NUMBERS, ("Satz", "Wert")), NUMBERS),
    "csv with integer labels": ("x.csv", delimited(LABELS, HEADER), LABELS),
    "csv in Chinese and Arabic": ("x.csv", delimited(BILINGUAL), BILINGUAL),
    "semicolons": ("x.csv", delimited(ROWS, HEADER, delimiter=";"), ROWS),
    "semicolons of Excel": ("x.csv", b"sep=;\n" + delimited(ROWS, HEADER, delimiter=";"), ROWS),
    "tabs in a csv file": ("x.csv", delimited(ROWS, HEADER, delimiter="\t"), ROWS),
    "csv, ragged": ("x.csv", b"id,text,label\n1,a,x\n2,b, c,y\n", RAGGED),
    "csv, comma without quotes": ("x.csv", b"a,x\nb, c,y\n", "line 2: the line has 3 columns"),
    "csv, long cell": ("x.csv", b"a,x\n" + b"b" * 131_073, "a cell has more than 131,072"),
    "csv, quote left open": ("x.csv", b'a,x\n"b,y\nc,z\n', "line 2: the row is no CSV"),
    "csv in latin-1": (
        "x.csv", delimited(GERMAN, HEADER).decode().encode("latin-1"), GERMAN, "'schöner'"),
    "csv in utf-16, little end first": (
        "x.csv", delimited(ROWS, HEADER).decode().encode("utf-16-le"), ROWS, "as utf-16-le"),
    "csv in utf-16, big end first": (
        "x.csv", b"\xfe\xff" + delimited(ROWS).decode().encode("utf-16-be"), ROWS, "as utf-16"),
    "csv in gb18030": (
        "x.csv", delimited(CHINESE, HEADER).decode().encode("gb18030"), CHINESE, "as gb18030"),
    "csv in shift-jis": (
        "x.csv", delimited(JAPANESE, HEADER).decode().encode("cp932"), JAPANESE, "as cp932"),
    "csv in cyrillic": (
        "x.csv", delimited(RUSSIAN).decode().encode("cp1251"), "line 1: invalid UTF-8"),
    "csv, pipes": ("x.csv", delimited(ROWS, HEADER, delimiter="|"), ROWS),
    "csv, semicolons and decimal commas": (
        "x.csv", "".join(f"{t};{i},5\n" for i, (t, _) in enumerate(PLAIN[:1] * 7)).encode(),
        [(PLAIN[0][0], f"{i}.5") for i in range(7)], "1,5 is read as the number 1.5"),
    "csv with booleans": (
        "x.csv", delimited([(t, str(n == "good")) for t, n in ROWS], HEADER),
        [(t, str(n == "good")) for t, n in ROWS]),
    "csv of unknown names, ids, dates and constants": (
        "x.csv", delimited(COMMENTS, COMMENT_NAMES, delimiter=";"), COMMENTED,
        "the source is Kommentar and the target is Sterne"),
    "csv of the same without names": (
        "x.csv", delimited(COMMENTS), COMMENTED, "is column 1 (from 0) and the target is column 4"),
    "csv of unknown names with a rare label": (
        "x.csv", delimited([*MANY, ("once", "rare")], ("Satz", "Urteil")),
        [*MANY, ("once", "rare")], "the source is Satz and the target is Urteil"),
    "csv of ids and two texts": (
        "x.csv", delimited([(f"seq{i}", *r) for i, r in enumerate(LONG)], ("id", "dna", "protein")),
        LONG, "the source is dna and the target is protein"),
    "csv of two languages among others": (
        "x.csv", delimited([(i, *r, True) for i, r in enumerate(LONG)], ("id", "th", "en", "ok")),
        LONG, "the source is th, the target is en"),
    "csv of references": (
        "x.csv", delimited([(*r, "z") for r in LONG], ("source", "ref1", "ref2")),
        "its columns are source, ref1, ref2, and which are source and target is not clear"),
    "csv with uuids": (
        "x.csv", delimited([(f"{i:08x}-0000-4000-8000-{i:012x}", *r) for i, r in enumerate(ROWS)],
                           ("row_key", "Satz", "Urteil")), ROWS, "left out: 'row_key'"),
    "csv, several labels in a cell": (
        "x.csv", delimited(TAGGED, HEADER), TAGGED),
    "csv, title, text and label": (
        "x.csv", delimited([(f"t{i}", f"{t} and so on", n) for i, (t, n) in enumerate(ROWS)],
                           ("Titel", "Inhalt", "Art")),
        [(f"{t} and so on", n) for t, n in ROWS], "Columns that are left out: 'Titel'"),
    "csv, premise and hypothesis": (
        "x.csv", delimited([(t, f"{n} film", str(i % 3)) for i, (t, n) in enumerate(PLAIN)],
                           ("premise", "hypothesis", "label")),
        [(f"{t}\t{n} film", str(i % 3)) for i, (t, n) in enumerate(PLAIN)],
        "the source is premise+hypothesis, the target is label"),
    "csv, two ways to cut": ("x.csv", b"a,b;x\nc,d;y\n", "',' and ';' cut its lines equally well"),
    "csv of two texts": (
        "x.csv", delimited([(f"p {t}", t, n) for t, n in ROWS], ("premise", "with", "label")),
        "its columns are premise, with, label, and which are source and target is not clear"),
    "csv of two texts with ids": (
        "x.csv", b"id,text,sentence,label\n1,a,b,x\n2,c,d,y\n3,c,d,y\n",
        "its columns are id, text, sentence, label, and which are source and target is not clear"),
    "tokens with tags": (
        "x.txt", b"-DOCSTART- -X- O\n\n" + sentences("{0} NN {1}"), TAGGED_WORDS,
        "the source is tokens and the target is tags; choose others as in columns=('A', 'B'). "
        "Columns that are left out: 'column 1'"),
    "tokens with tags, one line too long": (
        "x.txt", sentences("{0}\t{1}") + b"Ann\tPER\t?\n", "line 17: the line has 3 columns"),
    "CoNLL-U": (
        "x.conllu", sentences("{2}\t{0}\t_\t{1}" + 6 * "\t_", "# text = of\n1-2\tof" + 8 * "\t_"),
        TAGGED_WORDS),
    "csv of one column": ("x.csv", b"a text\nanother\n", "the line has 1 columns, and column 2"),
    "jsonl": ("x.jsonl", objects(ROWS, *HEADER, id=7).encode(), ROWS),
    "jsonl with integer labels": (
        "x.jsonl", objects([(t, int(n)) for t, n in LABELS], *HEADER).encode(), LABELS),
    "jsonl with booleans": (
        "x.jsonl", objects([("a", True), ("b", False)], *HEADER).encode(),
        [("a", "true"), ("b", "false")]),
    "jsonl, two unknown names": (
        "x.jsonl", objects(ROWS, "u", "v").encode(), ROWS, "the source is u and the target is v"),
    "jsonl, unknown names": (
        "x.jsonl", objects(ROWS, "u", "v", w=1.5, z=[2]).encode(), ROWS, "left out: 'w', 'z'"),
    "jsonl, unclear names": (
        "x.jsonl", objects(ROWS[:3], "u", "v", w="c").encode(),
        "its columns are u, v, w, and which are source and target is not clear"),
    "jsonl of translations": (
        "x.jsonl", "".join(json.dumps({"id": 3, "translation": {"zh": a, "ar": b}}) + "\n"
                           for a, b in BILINGUAL).encode(), BILINGUAL, "the source is zh"),
    "jsonl, a tag for each word": (
        "x.jsonl", objects([(a.split(), b.split()) for a, b in TAGGED_WORDS], "tokens", "ner_tags")
        .encode(), TAGGED_WORDS),
    "jsonl, list of labels": (
        "x.jsonl", objects([("a", ["b", "c"])], *HEADER).encode(), [("a", '["b", "c"]')]),
    "json array": ("x.json", json.dumps([{"text": t, "label": n} for t, n in ROWS]).encode(), ROWS),
    "json array, indented": (
        "x.json", json.dumps([{"text": t, "label": n} for t, n in ROWS], indent=1).encode(), ROWS),
    "json of columns": (
        "x.json", json.dumps({"text": TEXT_COLUMN, "label": LABEL_COLUMN}).encode(), ROWS),
    "json of pandas": (
        "x.json", json.dumps({"text": dict(enumerate(TEXT_COLUMN)),
                              "label": dict(enumerate(LABEL_COLUMN))}).encode(), ROWS),
    "json of pandas, by rows": (
        "x.json", json.dumps(dict(enumerate(RECORDS))).encode(), ROWS),
    "json of pandas, split": (
        "x.json", json.dumps({"columns": HEADER, "index": [0], "data": ROWS}).encode(), ROWS),
    "json of pandas, table": (
        "x.json", json.dumps({"schema": {"fields": []}, "data": RECORDS}).encode(), ROWS),
    "json, indented object": (
        "x.json", json.dumps({"examples": RECORDS}, indent=2).encode(), ROWS),
    "json in utf-16": ("x.json", json.dumps(RECORDS).encode("utf-16"), ROWS, "as utf-16"),
    "json, bad line among good ones": (
        "x.jsonl", b'{"text": "a"\n' + objects(ROWS[:2], *HEADER).encode(),
        "line 1: invalid JSON"),
    "json array of pairs": ("x.json", json.dumps(ROWS).encode(), ROWS),
    "json, cut off": ("x.json", b'[{"text": "a", ', "the file must hold JSON"),
    "SQuAD": ("x.json", json.dumps(squad([{"text": "Ada", "answer_start": 0}])).encode(),
              [(f"{PASSAGE}\t{ASKED}", "Ada")]),
    "SQuAD, indented": (
        "x.json", json.dumps(squad([{"text": "Ada", "answer_start": 0}]), indent=1).encode(),
        [(f"{PASSAGE}\t{ASKED}", "Ada")]),
    "SQuAD without an answer": (
        "x.json", json.dumps(squad([])).encode(), "line 1: the target side is empty"),
    "SQuAD 2": (
        "x.json", json.dumps(squad([{"text": "Ada", "answer_start": 0}], is_impossible=True))
        .encode(), [(f"{PASSAGE}\t{ASKED}", "Ada")], "1 questions that are marked as impossible"),
    "feather": ("x.feather", feather(text=TEXT_COLUMN, label=LABEL_COLUMN), ROWS),
    "arrow of datasets": ("x.arrow", arrow_stream(text=TEXT_COLUMN, label=LABEL_COLUMN), ROWS),
    "arrow, cut off": ("x.arrow", b"ARROW1\0\0...", "it cannot be read as Arrow"),
    "parquet, unknown names": (
        "x.parquet", table(n=list(range(12)), Satz=TEXT_COLUMN, Urteil=LABEL_COLUMN), ROWS,
        "the source is Satz and the target is Urteil"),
    "parquet of translations": (
        "x.parquet", table(translation=[{"zh": a, "ar": b} for a, b in BILINGUAL]), BILINGUAL),
    "xlsx": ("x.xlsx", workbook([HEADER, *ROWS]), ROWS),
    "xlsx of several sheets": (
        "x.xlsx", workbook([COMMENT_NAMES, *COMMENTS], [("other",)]), COMMENTED,
        "its first sheet, S1, is read, and not S2"),
    "xlsx, damaged": ("x.xlsx", b"<html>", "the file must be a zip, but it cannot be read"),
    "zip of one csv": ("x.zip", zipped(x_dot_csv=delimited(ROWS, HEADER)), ROWS, "x.csv is read"),
    "zip with a readme": (
        "x.zip", zipped(README_dot_txt="read me", a__x_dot_xlsx=workbook([HEADER, *ROWS]),
                        **{"_MACOSX/x.csv": b"junk"}), ROWS, "a/x.xlsx is read"),
    "zip of training and test": (
        "x.zip", zipped(train_dot_jsonl=objects(ROWS, *HEADER), test_dot_jsonl="{}"), ROWS),
    "zip of two tables": (
        "x.zip", zipped(a_dot_csv="x", b_dot_csv="y"), "has 2 (a.csv, b.csv): unpack it with"),
    "zip of classes": (
        "x.zip", zipped(cat__1_dot_png=PNG, dog__2_dot_png=PNG, x_dot_csv="a"),
        "has 2 pictures or recordings"),
    "zip, damaged": ("x.zip", b"PK\3\4...", "the file must be a zip, but it cannot be read"),
    "parquet": ("x.parquet", table(text=[r[0] for r in ROWS], label=[r[1] for r in ROWS]), ROWS),
    "parquet with ids, label first": (
        "x.parquet", table(label=[0, 1], id=[7, 8], text=["a", "b"]), [("a", "0"), ("b", "1")]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_it_was_written_or_refused(tmp_path, name):
    file, content, expected, *said = FILES[name]
    (tmp_path / file).write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(DataError) as caught:
            list(read_pairs(tmp_path / file))
        sentence = str(caught.value)
        assert expected in sentence
        assert sentence.endswith(".")
        assert "\n" not in sentence
    else:
        reader = read_pairs(tmp_path / file)
        assert [(pair.src, pair.tgt) for pair in reader] == expected
        assert said == [] or said[0] in reader.note
        assert said or "UTF-8" not in reader.note


#: files that may be meant in two ways: read in one, with a sentence about the other
NOTED = {
    "names?": (lines(PLAIN, "Satz", "Urteil"), "the source is Satz and the target is Urteil"),
    "one date": (
        lines([(f"{i}", *row, "2024-01-02") for i, row in enumerate(PLAIN)], *"ABCD"),
        "the source is B and the target is C",
    ),
    "quotes": (delimited(ROWS[2:4] * 3, delimiter="\t"), "quotes are read as part of the text"),
    "quotes below names": (delimited(ROWS[2:4], HEADER, "\t"), "the quotes are read as part of"),
    "all quoted": (delimited(PLAIN, "AB", "\t", quoting=csv.QUOTE_ALL), "the quotes are read as"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_what_may_be_meant_otherwise_is_noted(tmp_path, name):
    content, said = NOTED[name]
    (tmp_path / "x.tsv").write_bytes(content)
    assert said in read_pairs(tmp_path / "x.tsv").note
    left = read_pairs(tmp_path / "x.tsv", columns=(0, 1)).note
    assert (said in left) if "quote" in name else left == ""


SOURCES = {
    "sentences": ("x.jsonl", b'{"story": ["A b.", "C d."], "question": "Q?"}', "A b. | C d.\tQ?"),
    "a tab in a passage": ("x.csv", b'question,context\nQ?,"a\tb"', "a b\tQ?"),
    "a list of features": ("x.jsonl", b'{"src": "a", "features": ["V", "3"]}', "a\tV;3"),
    "a column of features": ("x.csv", b"tgt,src,tags\nb,a,V;3", "a\tV;3"),
    "tabs below names": ("x.tsv", b"src\tform\na\tV;3", "a\tV;3"),
    "tabs": ("x.tsv", b"a\tV;3", "a\tV;3"),
    "fewer columns than the run's": ("x.csv", b"a", "a"),
    "no story": ("x.jsonl", b'{"story": null, "question": "Q?"}', "line 1: the story is empty"),
    "no key": ("x.jsonl", b"{}", "line 1: the source side is empty"),
    "a bad row": ("x.csv", b"text\nbad", "line 2: it is bad"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_those_of_pairs(tmp_path, name):
    file, content, expected = SOURCES[name]
    (tmp_path / file).write_bytes(content + b"\n")

    def check(text, line):
        assert line == (file == "x.tsv" and "names" not in name)
        if text == "bad":
            raise DataError("x", 9, "it is bad", "mend it")

    bad, columns = (
        BadLines(skip=True),
        column_names(run_columns("10")) if name.startswith("fewer") else None,
    )
    given = SourceFiles([tmp_path / file], columns, 99, bad, check)
    found = list(text_sources(given, features=True))
    found += [str(error).partition(f"{file}, ")[2][: len(expected)] for error in bad.first]
    assert found == [expected]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.parquet", "x.xlsx"])
def test_other_files_are_read_by_the_columns_of_a_run_in_any_order(tmp_path, name):
    rows = [(n, "web", t) for t, n in PLAIN]
    names = ("Urteil", "Quelle", "Satz")
    content = {
        "x.csv": delimited(rows, names),
        "x.tsv": lines(rows, *names),
        "x.jsonl": objects(rows, *names).encode(),
        "x.parquet": table(**dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))),
        "x.xlsx": workbook([names, *rows]),
    }[name]
    (tmp_path / name).write_bytes(content)
    columns = run_columns(("Satz", "Urteil"))
    assert [pair[:2] for pair in read_pairs(tmp_path / name, columns=columns)] == PLAIN
    without = run_columns(("Satz", "Note"))  # to predict, no target is needed
    read = SourceFiles([tmp_path / name], without, 99, BadLines(), lambda text, line: None)
    texts = text_sources(read)
    assert list(texts) == [text for text, _ in PLAIN]
    with pytest.raises(DataError, match=r"there is no (column|key) 'Note'"):
        list(read_pairs(tmp_path / name, columns=without))
    if name == "x.csv":  # a file without names has other columns
        (tmp_path / name).write_bytes(delimited(PLAIN))
        assert [pair[:2] for pair in read_pairs(tmp_path / name, columns=columns)] == PLAIN


def test_a_workbook_or_a_zip_cannot_fill_the_memory(tmp_path, monkeypatch):
    file = tmp_path / "x.xlsx"
    far = workbook([HEADER, *ROWS])
    with zipfile.ZipFile(io.BytesIO(far)) as book:
        files = {name: book.read(name) for name in book.namelist()}
    sheet = files["xl/worksheets/s1.xml"]
    for wrong, cells in (
        (sheet.replace(b'r="B2"', b'r="XFD1048576"'), f"{(2**20 + 20_000) * (2**14 + 20_000):,}"),
        (sheet.replace(b' r="', b' q="'), ""),
    ):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as book:
            for name in files:
                book.writestr(name, files[name])
            book.writestr("xl/worksheets/s2.xml", wrong + b"<row/><c/>" * 10_000)
        said = f"a sheet must have at most 16,777,216 cells, but it has {cells}"
        with pytest.raises(DataError, match=said):
            read_pairs(file)
    monkeypatch.setattr("regard.data.table_files.MAX_XML", 2000)
    file.write_bytes(far)
    with pytest.raises(DataError, match="at most 2,000 bytes, but it has more once decompressed"):
        read_pairs(file)


def test_bad_rows_of_csv_can_be_left_out(tmp_path):
    (tmp_path / "x.csv").write_bytes(b'text,label\na,x\n"b" c,y\n\nd,z,z\n\xff,w\ne,"x\ny"\n')
    reader = read_pairs(tmp_path / "x.csv", skip_bad=True)
    assert [pair[:3] for pair in reader] == [("a", "x", 2), ("e", "x\ny", 7)]
    assert reader.bad.counts.keys() == {
        "invalid CSV", "empty line", "other number of columns", "invalid UTF-8",
    }  # fmt: skip


class Polars:
    """A table with the interface of polars."""

    columns = ("text", "label")

    def to_dicts(self):
        return [{"text": text, "label": int(label)} for text, label in LABELS]


def tables_of_python():
    columns = {"id": list(range(len(LABELS))), "text": [text for text, _ in LABELS]}
    columns["label"] = [int(label) for _, label in LABELS]
    yield pyarrow.table(columns)
    yield Polars()
    yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    pandas = pytest.importorskip("pandas")
    yield pandas.DataFrame(columns)
    yield pandas.DataFrame({"Satz": columns["text"], "Wert": columns["label"]})


def test_tables_of_other_libraries_are_pairs():
    for given in tables_of_python():
        assert [pair[:2] for pair in read_pairs(check_pairs(given))] == LABELS
    with pytest.raises(DataError, match="its columns are a, b, c, and which of them is"):
        list(read_pairs(check_pairs(pyarrow.table({"a": [1], "b": [2], "c": [3]}))))


@pytest.mark.parametrize(
    ("names", "row", "target"),
    [
        ("a,b,species", lambda i: (i / 7, i % 5, "xy"[i % 2]), "species"),
        ("id,b,kind,size", lambda i: (i, i / 7, "xy"[i % 2], i % 4), "kind"),
        ("a,target,kind", lambda i: (i / 7, 10 * i, "xy"[i % 2]), "target"),
        ("grade,a,b", lambda i: (i % 3, i / 7, -i / 3), "grade"),
        ("a,b", lambda i: (i / 7, i), "b"),
        ("a,b", lambda i: (i, i * i), None),
        ("said,grade", lambda i: ("good bad"[: 4 + i % 3], i % 5), None),
        ("a,b,kind,sort", lambda i: (i / 7, i / 3, "xy"[i % 2], "uv"[i % 2]), None),
        ("a,b,note,kind", lambda i: (i / 7, i / 3, f"note {i} of it", "xy"[i % 2]), None),
        ("text,label", lambda i: (i / 7, i % 2), None),
    ],
)
def test_the_target_of_columns_of_numbers_follows_from_names_and_content(names, row, target):
    names = names.split(",")
    assert choose_numbers(names, [[*map(str, row(i))] for i in range(40)]) == target
