//! SmolLM3: a Llama that does not rotate queries and keys in every fourth block.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::tensors::dense;
use crate::error::Result;

/// No key of a file says it.
const BLOCKS_TO_ONE_WITHOUT_ROPE: usize = 4;

/// Like Llama but for the rotation.
pub const FAMILY: Family = Family { name: "smollm3", config, tensors: dense };

fn config(keys: &Keys<'_>) -> Result<Config> {
    let mut config = Config::dense(keys)?;
    for block in config.blocks.chunks_exact_mut(BLOCKS_TO_ONE_WITHOUT_ROPE) {
        block[BLOCKS_TO_ONE_WITHOUT_ROPE - 1].rope = None;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::describe;
    use crate::fixture::tiny;
    use crate::gguf::file::GgufFile;

    #[test]
    fn every_fourth_block_has_no_rope() {
        let file = tiny(&FAMILY, 9).file();
        let file = GgufFile::open(file.path()).unwrap();
        let rotates: Vec<_> = describe(&file).unwrap().config.blocks.iter().map(|block| block.rope.is_some()).collect();
        assert_eq!(rotates, [true, true, true, false, true, true, true, false, true]);
    }
}
