//! Ids that other programs published for texts, against ours.

use std::path::{Path, PathBuf};

use super::Tokenizer;
use crate::gguf::file::GgufFile;

/// Compare with the published ids beside the vocabulary `path`: those of text, and those with marks if they are there.
fn check_published_ids(path: &Path) -> usize {
    let beside = |ending: &str| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned() + ending;
        std::fs::read_to_string(path.with_file_name(name))
    };
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(path).unwrap()).unwrap();
    let texts = beside(".inp").unwrap();
    let texts: Vec<_> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    let mut compared = 0;
    for (ending, parse_special) in [(".out", false), (".special.out", true)] {
        let expected = match beside(ending) {
            Err(_) if parse_special => continue,
            expected => expected.unwrap(),
        };
        assert_eq!(expected.lines().count(), texts.len());
        for (text, line) in texts.iter().zip(expected.lines()) {
            let expected = line.split_whitespace().map(|id| id.parse().unwrap());
            let ids = tokenizer.encode(text, Some(false), parse_special).unwrap();
            assert_eq!(ids, expected.collect::<Vec<u32>>(), "{text:?}");
            if !parse_special {
                assert_eq!(tokenizer.decode(&ids, true).unwrap(), *text);
            }
            compared += 1;
        }
    }
    compared
}

#[test]
fn ids_are_the_published_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for name in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact"] {
        assert_eq!(check_published_ids(&folder.join(name).with_extension("gguf")), 46, "{name}");
    }
    assert_eq!(check_published_ids(&folder.join("smollm2.gguf")), 60);
}

/// The same on whole vocabularies, which are too large to be kept here: `SPECRS_VOCABULARIES` is a folder of `.gguf` files with
/// `.gguf.inp` and `.gguf.out` beside them, such as llama.cpp's `models`; without it, one beside the project is looked for.
#[test]
#[allow(clippy::print_stderr)]
fn ids_of_whole_vocabularies_are_the_published_ones() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/vocab");
    let named = std::env::var_os("SPECRS_VOCABULARIES").map(PathBuf::from);
    let Some(folder) = named.or_else(|| beside.is_dir().then_some(beside)) else {
        eprintln!("skipped: SPECRS_VOCABULARIES names no folder");
        return;
    };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    assert!(!models.is_empty());
    for path in models {
        eprintln!("{}: {} texts", path.display(), check_published_ids(&path));
    }
}
