use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::fixture::{tiny_bpe, tiny_spm, GgufWriter};
use crate::gguf::metadata::{Array, Value};
use crate::gguf::types::GgmlType;

fn tokenizer(model: &GgufWriter) -> Result<Tokenizer> {
    let file = model.file();
    Tokenizer::from_gguf(&GgufFile::open(file.path())?)
}

/// The tokenizer of a file in `tests/data`.
fn open(name: &str) -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = GgufFile::open(&folder.join(name)).unwrap();
    Tokenizer::from_gguf(&file).unwrap()
}

#[test]
fn text_never_becomes_a_mark_by_itself() {
    for (tokenizer, marks) in [
        (open("llama-spm.gguf"), &["<unk>", "<s>", "</s>"][..]),
        (open("smollm2.gguf"), &["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
        (open("llama-bpe.gguf"), &["<|eot_id|>"]),
    ] {
        for mark in marks {
            let text = format!("a{mark}b");
            let ids = tokenizer.encode(&text, Some(false), false).unwrap();
            assert!(ids.iter().all(|&id| !tokenizer.is_control(id).unwrap()), "{mark}");
            let ids = tokenizer.encode(&text, Some(false), true).unwrap();
            let found: Vec<_> = ids.iter().filter(|&&id| tokenizer.is_control(id).unwrap()).collect();
            assert_eq!(found.len(), 1, "{mark}");
            assert_eq!(tokenizer.token(*found[0]).unwrap(), *mark);
        }
    }
    // Not by way of merges either: this vocabulary can put "<s>" together.
    let mut model = tiny_spm(&["<s", "s>", "<", "s", ">"]);
    let ids = tokenizer(&model).unwrap().encode("<s>", Some(false), false).unwrap();
    assert!(!ids.contains(&1), "{ids:?}");
    // What a byte is called is text as well.
    model = tiny_spm(&["<0x0A", ">", "<", "0x0A", "0", "x", "A", "0A", "0x"]);
    let newline = 3 + 10;
    let ids = tokenizer(&model).unwrap().encode("<0x0A>", Some(false), true).unwrap();
    assert!(!ids.contains(&newline), "{ids:?}");
}

#[test]
fn user_defined_tokens_are_one_id_longest_first() {
    for mut model in [tiny_spm(&["a", "x"]), tiny_bpe(&[])] {
        model.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
        let short = model.add_token("<|x|", 4);
        let long = model.add_token("<|x|>", 4);
        let mark = model.add_token("<|x|>>", 3);
        let tokenizer = tokenizer(&model).unwrap();
        let encode = |text, special| tokenizer.encode(text, Some(false), special).unwrap();
        for special in [false, true] {
            assert_eq!(encode("<|x|><|x|<|x|>", special), [long, short, long]);
        }
        let ids = encode("<|x|>>", false);
        assert_eq!(ids[0], long);
        assert!(!ids.contains(&mark));
        assert_eq!(encode("<|x|>>", true), [mark]);
        assert_eq!(tokenizer.decode(&[long, mark, short], true).unwrap(), "<|x|><|x|");
    }
}

#[test]
fn exactly_one_bos_where_one_is_wanted() {
    for (mut model, default) in [(tiny_spm(&["a"]), true), (tiny_bpe(&[]), false)] {
        for (flag, expected) in [(None, default), (Some(true), true), (Some(false), false)] {
            match flag {
                Some(flag) => model.set("tokenizer.ggml.add_bos_token", Value::Bool(flag)),
                None => model.remove("tokenizer.ggml.add_bos_token"),
            };
            let tokenizer = tokenizer(&model).unwrap();
            assert_eq!(tokenizer.add_bos(), expected);
            let bos = tokenizer.bos().unwrap();
            let count = |text, add_bos| {
                let ids = tokenizer.encode(text, add_bos, true).unwrap();
                ids.iter().filter(|&&id| id == bos).count()
            };
            assert_eq!(count("a", None), usize::from(expected));
            assert_eq!(count("", None), usize::from(expected));
            assert_eq!(count("<s>a", None), 1);
            assert_eq!(count("a", Some(true)), 1);
            assert_eq!(count("a", Some(false)), 0);
            // Whoever asks for one gets one.
            assert_eq!(count("<s>a", Some(true)), 2);
        }
    }
    let mut llama3 = tiny_bpe(&[]);
    llama3.set("tokenizer.ggml.pre", Value::String("llama-bpe".into()));
    assert!(tokenizer(&llama3).unwrap().add_bos());
    llama3.remove("tokenizer.ggml.bos_token_id");
    let without = tokenizer(&llama3).unwrap();
    assert!(!without.add_bos());
    let error = without.encode("a", Some(true), false).unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
}

#[test]
fn rows_without_a_token_are_padding() {
    let mut model = tiny_spm(&["a"]);
    let unused = model.add_token("[PAD]", 5);
    let tokens = u64::from(unused) + 1;
    model.tensor(&Role::Embedding.to_string(), GgmlType::F32, &[4, tokens + 3]);
    let padded = tokenizer(&model).unwrap();
    assert_eq!(padded.n_vocab() as u64, tokens + 3);
    for id in [unused, unused + 1, unused + 3] {
        assert!(padded.is_padding(id).unwrap());
        assert_eq!(padded.decode(&[id], true).unwrap(), "");
    }
    assert_eq!(padded.token(unused).unwrap(), "[PAD]");
    assert_eq!(padded.token(unused + 1).unwrap(), "");
    assert!(!padded.is_padding(unused - 1).unwrap());
    for error in [
        padded.decode(&[unused + 4], true).unwrap_err(),
        padded.token(u32::MAX).unwrap_err(),
        padded.is_control(unused + 4).unwrap_err(),
    ] {
        let range = format!("is out of range: the vocabulary has ids from 0 to {}", tokens + 2);
        assert!(error.to_string().contains(&range), "{error}");
    }
    model.tensors.clear();
    model.tensor(&Role::Embedding.to_string(), GgmlType::F32, &[4, tokens - 1]);
    let error = tokenizer(&model).unwrap_err().to_string();
    assert!(error.contains("tensor `token_embd.weight` only"), "{error}");
}

#[test]
fn characters_without_a_token_become_bytes_or_unknown() {
    let spm = tokenizer(&tiny_spm(&["a", "▁"])).unwrap();
    let ids = spm.encode("aé", Some(false), false).unwrap();
    assert_eq!(ids[2..], [3 + 0xC3, 3 + 0xA9]);
    assert_eq!(spm.decode(&ids, true).unwrap(), "aé");
    let mut model = GgufWriter::new();
    model.vocabulary("llama", &[("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1), ("▁", 1)]);
    model.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 5])));
    let ids = tokenizer(&model).unwrap().encode("aéa", Some(false), false).unwrap();
    assert_eq!(ids, [4, 3, 0, 3]);
}

#[test]
fn the_space_before_a_text_follows_the_file() {
    let mut model = tiny_spm(&["a", "▁", "▁a"]);
    let tokenizer_with = tokenizer(&model).unwrap();
    let ids = tokenizer_with.encode("a ▁a", Some(false), false).unwrap();
    let strings: Vec<_> = ids.iter().map(|&id| tokenizer_with.token(id).unwrap()).collect();
    assert_eq!(strings, ["▁a", "▁", "▁a"]);
    assert_eq!(tokenizer_with.decode(&ids, true).unwrap(), "a  a");
    model.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let without = tokenizer(&model).unwrap();
    let ids = without.encode(" a", Some(false), false).unwrap();
    assert_eq!(without.decode(&ids, true).unwrap(), " a");
    assert_eq!(ids.len(), 1);
}

#[test]
fn text_after_a_user_defined_token_has_no_space_before_it() {
    let mut model = tiny_spm(&["a", "▁", "▁a"]);
    let word = model.add_token("<|x|>", 4);
    let tokenizer = tokenizer(&model).unwrap();
    let strings = |text, special| {
        let ids = tokenizer.encode(text, Some(false), special).unwrap();
        let strings: Vec<_> = ids.iter().map(|&id| tokenizer.token(id).unwrap().to_owned()).collect();
        (strings.join(" "), tokenizer.decode(&ids, true).unwrap())
    };
    for special in [false, true] {
        // As SentencePiece has it: the space comes before the text, whatever the text begins with.
        assert_eq!(strings("<|x|>a", special), ("▁ <|x|> a".into(), "<|x|>a".into()));
        assert_eq!(strings("a<|x|>a", special), ("▁a <|x|> a".into(), "a<|x|>a".into()));
        assert_eq!(strings("a<|x|> a", special), ("▁a <|x|> ▁a".into(), "a<|x|> a".into()));
    }
    assert_eq!(strings("a</s>a<|x|>a", true).0, "▁a </s> ▁a <|x|> a");
    assert_eq!(tokenizer.encode("<|x|></s>", Some(false), true).unwrap(), [260, word, 2]);
}

#[test]
fn white_space_that_is_user_defined_is_cut_out() {
    let mut model = tiny_spm(&["a", "▁", "▁▁", "▁a"]);
    model.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    for run in ["▁▁▁", "\n", "\n\n"] {
        model.add_token(run, 4);
    }
    let tokenizer = tokenizer(&model).unwrap();
    for (text, expected) in [
        ("a  a", "a|▁▁|a"),
        ("   a", "▁▁▁|a"),
        ("     a", "▁▁▁|▁▁|a"),
        ("a\n\n\na", "a|\n\n|\n|a"),
        ("a▁▁▁a", "a|▁▁▁|a"),
    ] {
        let ids = tokenizer.encode(text, Some(false), false).unwrap();
        let strings: Vec<_> = ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
        assert_eq!(strings.join("|"), expected);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.replace('▁', " "));
    }
}

#[test]
fn marks_of_phi_3_swallow_white_space() {
    let mut model = tiny_spm(&["a", "▁", "▁a"]);
    let [end, text_end] = ["<|end|>", "<|endoftext|>"].map(|mark| model.add_token(mark, 3));
    let word = model.add_token("<|x|>", 4);
    let (a, space) = (261, 260);
    let encode = |model: &GgufWriter, text: &str| tokenizer(model).unwrap().encode(text, Some(false), true).unwrap();
    let newline = 3 + 10;
    assert_eq!(encode(&model, "<|end|>\na"), [end, space, newline, 259]);
    model.set("general.architecture", Value::String("phi3".into()));
    assert_eq!(encode(&model, "<|end|>\n \u{3000}a"), [end, a]);
    assert_eq!(encode(&model, "<|end|> <|end|>\n"), [end, end]);
    assert_eq!(encode(&model, "a<|x|> a"), [a, word, 259]);
    for (mark, id) in [("<s>", 1), ("<unk>", 0), ("<|endoftext|>", text_end)] {
        assert_eq!(encode(&model, &format!("{mark} a")), [id, space, a], "{mark}");
    }
}

#[test]
fn time_does_not_grow_with_the_number_of_marks() {
    let mut model = tiny_bpe(&[]);
    for i in 0..30_000 {
        model.add_token(&format!("<|audio_{i}|>"), 3);
    }
    let last = model.add_token("<|audio|>", 3);
    let tokenizer = tokenizer(&model).unwrap();
    let text = "<p class='audio'><|audio|><|audio_</p>".repeat(20_000);
    let start = Instant::now();
    let quoted = tokenizer.encode_pieces(&[(&text, Marks::Quoted)]);
    assert!(!quoted.contains(&last) && quoted.len() > 20_000);
    let ids = tokenizer.encode(&text, Some(false), true).unwrap();
    // A hundred times what is usual; to try every mark at every place takes an hour.
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(ids.iter().filter(|&&id| id == last).count(), 20_000);
}

#[test]
fn damaged_metadata_is_refused_by_name() {
    let strings = |v: &[&str]| Value::Array(Array::String(v.iter().collect()));
    let string = |v: &str| Value::String(v.to_owned());
    let spm = tiny_spm(&["a"]);
    let bpe = tiny_bpe(&[("a", "b")]);
    for (model, key, value, says) in [
        (
            &spm,
            "tokenizer.ggml.model",
            string("bert"),
            "\"bert\" is not supported (supported: `tokenizer.ggml.model` \"llama\"",
        ),
        (&spm, "tokenizer.ggml.model", string("gemma4"), "\"gpt2\" with `tokenizer.ggml.pre` llama-bpe, "),
        (&spm, "tokenizer.ggml.tokens", strings(&[]), "`tokenizer.ggml.tokens` is missing or empty"),
        (&spm, "tokenizer.ggml.tokens", string("a"), "must be an array of strings"),
        (&spm, "tokenizer.ggml.tokens", strings(&["a"]), "`tokenizer.ggml.token_type` has 260 entries but there are 1"),
        (&spm, "tokenizer.ggml.token_type", Value::Array(Array::I32(vec![9; 260])), "unknown type 9"),
        (&spm, "tokenizer.ggml.token_type", Value::Array(Array::I32(vec![6; 260])), "is a byte by its type but"),
        (
            &spm,
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0; 3])),
            "`tokenizer.ggml.scores` has 3 entries",
        ),
        (&spm, "tokenizer.ggml.scores", Value::Array(Array::F32(vec![f32::NAN; 260])), "token 0 has no number"),
        (&bpe, "tokenizer.ggml.pre", string("bloom"), "`tokenizer.ggml.pre` \"bloom\" is not supported (supported: "),
        (&bpe, "tokenizer.ggml.pre", string(""), "\"gpt2\" with `tokenizer.ggml.pre` llama-bpe, "),
        (&bpe, "tokenizer.ggml.eos_token_ids", Value::U32(1), "must be an array of integers"),
        (&bpe, "tokenizer.ggml.merges", strings(&["a b", "a zz"]), "entry 1, \"a zz\", names a token"),
        (&bpe, "tokenizer.ggml.merges", strings(&["b a"]), "entry 0, \"b a\", names a token"),
        (&bpe, "tokenizer.ggml.merges", strings(&["ab"]), "entry 0, \"ab\", is no pair"),
        (&bpe, "tokenizer.ggml.merges", strings(&[""]), "entry 0, \"\", is no pair"),
        (&bpe, "tokenizer.chat_template", Value::U32(1), "`tokenizer.chat_template` must be a string"),
    ] {
        let mut model = model.clone();
        model.set(key, value);
        let error = tokenizer(&model).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    for (model, key) in [
        (&spm, "tokenizer.ggml.model"),
        (&spm, "tokenizer.ggml.tokens"),
        (&spm, "tokenizer.ggml.scores"),
        (&spm, "tokenizer.ggml.token_type"),
        (&bpe, "tokenizer.ggml.merges"),
    ] {
        let mut model = model.clone();
        model.remove(key);
        let error = tokenizer(&model).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}` is missing")), "{error}");
    }
    let mut bpe = bpe.clone();
    bpe.remove("tokenizer.ggml.bos_token_id");
    bpe.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let error = tokenizer(&bpe).unwrap_err().to_string();
    assert!(error.contains("`tokenizer.ggml.bos_token_id` is missing"), "{error}");
}

#[test]
fn time_grows_with_the_text_only() {
    let megabyte = 1 << 20;
    for tokenizer in [open("llama-spm.gguf"), open("llama-bpe.gguf"), open("smollm2.gguf")] {
        for unit in ["a", " ", "\n", "<", "é", "1", "The quick brown fox, isn't it? "] {
            let text = unit.repeat(megabyte / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, Some(false), true).unwrap();
            // A hundred times what is usual; anything quadratic takes hours.
            assert!(start.elapsed() < Duration::from_secs(60), "{unit:?}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
        }
    }
}

#[test]
fn threads_share_a_tokenizer() {
    let tokenizer = open("llama-spm.gguf");
    let text = "Several threads read the same tables, 🦙 and bytes.";
    let expected = tokenizer.encode(text, None, false).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(tokenizer.encode(text, None, false).unwrap(), expected);
                    assert_eq!(tokenizer.decode(&expected, true).unwrap(), text);
                }
            });
        }
    });
}

/// The strings of the ids of `pieces`.
fn spelt<'a>(tokenizer: &'a Tokenizer, pieces: &[(&str, Marks)]) -> Vec<&'a str> {
    tokenizer.encode_pieces(pieces).iter().map(|&id| tokenizer.token(id).unwrap()).collect()
}

#[test]
fn marks_count_only_in_pieces_of_the_template() {
    let (all, quoted) = (Marks::All, Marks::Quoted);
    let tokenizer = tokenizer(&tiny_spm(&["▁a", "a", "b", "<", "/", "s", ">", "▁"])).unwrap();
    let ids = spelt(&tokenizer, &[("<s>", all), ("a</s>b", quoted), ("</s>", all)]);
    // One space before the text, and none where a mark is spelt.
    assert_eq!(ids, ["<s>", "▁a", "<", "/", "s", ">", "b", "</s>"]);
    // Halves of a mark from two pieces are none, and a border leaves no trace in the text.
    let ids = spelt(&tokenizer, &[("</", all), ("s>", quoted), ("a", all), ("b", quoted)]);
    assert_eq!(ids, ["▁", "<", "/", "s", ">", "a", "b"]);
}

#[test]
fn quoted_text_never_becomes_a_user_defined_mark_of_turns() {
    let mut model = tiny_bpe(&[]);
    let [user, think, thought, turn, space] =
        ["<|user|>", "<think>", "</think>", "{turn}", "\n\n"].map(|text| model.add_token(text, 4));
    model.set("tokenizer.chat_template", Value::String("<think></think>{turn}\n\n".into()));
    let tokenizer = tokenizer(&model).unwrap();
    let text = "<|user|><think></think>{turn}\n\n";
    let every = [user, think, thought, turn, space];
    assert_eq!(tokenizer.encode(text, Some(false), false).unwrap(), every);
    assert_eq!(tokenizer.encode_pieces(&[(text, Marks::All)]), every);
    let ids = tokenizer.encode_pieces(&[(text, Marks::Quoted), ("{turn}", Marks::All)]);
    let marks: Vec<_> = ids.iter().copied().filter(|id| every.contains(id)).collect();
    assert_eq!(marks, [think, thought, space, turn]);
    // A mark of which a part is quoted is text as well.
    for pieces in [[("<|us", Marks::All), ("er|>", Marks::Quoted)], [("<|us", Marks::Quoted), ("er|>", Marks::All)]] {
        assert!(!tokenizer.encode_pieces(&pieces).contains(&user));
    }
}

#[test]
fn marks_that_are_typed_as_text_are_marks_where_the_template_writes_them() {
    let mut model = tiny_bpe(&[]);
    let end = model.add_token("<|im_end|>", 1);
    let other = model.add_token("<|other|>", 1);
    let without = tokenizer(&model).unwrap();
    assert!(!without.end_ids().contains(&end) && without.notes().is_empty());
    model.set("tokenizer.chat_template", Value::String("{{ m }}<|im_end|>".into()));
    let tokenizer = tokenizer(&model).unwrap();
    assert!(tokenizer.end_ids().contains(&end) && tokenizer.is_control(end).unwrap());
    assert!(!tokenizer.is_control(other).unwrap());
    assert_eq!(tokenizer.encode("<|im_end|>", None, true).unwrap(), [end]);
    assert_eq!(tokenizer.decode(&[end], true).unwrap(), "");
    assert_eq!(tokenizer.control_id("<|im_end|>"), Some(end));
    assert_eq!(["<|im_end|> ", "<|other|>", ""].map(|name| tokenizer.control_id(name)), [None; 3]);
    let [note] = tokenizer.notes() else { panic!("{:?}", tokenizer.notes()) };
    assert!(note.contains(&format!("token {end}, `<|im_end|>`")), "{note}");
}

#[test]
fn marks_are_written_on_demand() {
    let tokenizer = tokenizer(&tiny_spm(&["▁a", "a"])).unwrap();
    let ids = tokenizer.encode("<s>a</s>a", Some(false), true).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a a");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<s>a</s> a");
}
