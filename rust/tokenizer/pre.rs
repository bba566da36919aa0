//! What the names in `tokenizer.ggml.pre` stand for.

use super::words::{Rule, Words};

const LLAMA_3: Rule = Rule::Llama3 { digits: 3, marks: false };
const QWEN_2: Rule = Rule::Llama3 { digits: 1, marks: false };

/// Names that are known; how they cut words; whether a word that is a token stays whole, whatever the merges say; and
/// whether texts begin with a BOS if the file does not say.
///
/// The last two follow the converters of llama.cpp and the models' own tokenizers; neither follows from the rule.
const TABLE: [(&[&str], Rule, bool, bool); 10] = [
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "midm-2.0"], LLAMA_3, true, true),
    (&["glm4"], LLAMA_3, true, false),
    (&["chatglm-bpe", "dbrx", "smaug-bpe"], LLAMA_3, false, false),
    (&["qwen2", "deepseek-r1-qwen", "megrez", "kormo", "stablelm2"], QWEN_2, false, false),
    (&["qwen35"], Rule::Llama3 { digits: 1, marks: true }, false, false),
    (&["gpt-4o", "llama4"], Rule::O200k { digits: 3, contractions: true }, false, false),
    (&["tekken"], Rule::O200k { digits: 1, contractions: false }, true, true),
    (&["smollm", "starcoder", "refact", "command-r", "exaone", "mellum2"], Rule::SingleDigits, false, false),
    (&["gpt-2", "gpt2", "mpt", "olmo", "phi-2", "exaone4", "mellum"], Rule::Gpt2, false, false),
    (&["default"], Rule::Default, false, false),
];

/// How a family of models reads text.
#[derive(Debug)]
pub struct Pre {
    /// How text is cut into words.
    pub words: Words,
    /// Whether a word that is a token stays whole, whatever the merges say.
    pub whole_tokens_first: bool,
    /// Whether texts begin with a BOS if the file does not say.
    pub add_bos: bool,
}

impl Pre {
    /// What files mean by `name`, if it is known.
    pub fn named(name: &str) -> Option<Self> {
        let (_, rule, whole_tokens_first, add_bos) = TABLE.into_iter().find(|(names, ..)| names.contains(&name))?;
        Some(Self { words: Words::new(rule), whole_tokens_first, add_bos })
    }

    /// All known names.
    pub fn names() -> String {
        TABLE.map(|(names, ..)| names.join(", ")).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_once() {
        let names = Pre::names();
        let names: Vec<_> = names.split(", ").collect();
        for name in &names {
            assert!(Pre::named(name).is_some(), "{name}");
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        assert!(Pre::named("").is_none() && Pre::named("deepseek-llm").is_none());
    }

    #[test]
    fn equal_words_do_not_mean_equal_columns() {
        let columns = |name| Pre::named(name).map(|pre| (pre.whole_tokens_first, pre.add_bos));
        assert_eq!(columns("llama3"), Some((true, true)));
        assert_eq!(columns("glm4"), Some((true, false)));
        assert_eq!(columns("dbrx"), Some((false, false)));
    }
}
