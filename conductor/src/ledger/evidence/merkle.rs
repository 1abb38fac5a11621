//! A Merkle tree as RFC 6962 has it: leaves and nodes are hashed with different
//! prefixes, and a tree of n leaves is split at the largest power of two below n.
//! One leaf can be proven to be in it without the others.

use sha2::{Digest as _, Sha256};

use super::{Hash, sha256};

/// The hash of a leaf's bytes.
pub fn leaf(bytes: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher.update(bytes);
    hasher.finalize().into()
}

fn node(left: &Hash, right: &Hash) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([1]);
    hasher.update(left);
    hasher.update(right);
    hasher.finalize().into()
}

/// Where a tree of so many leaves, at least two, is split.
fn split(leaves: usize) -> usize {
    leaves.next_power_of_two() / 2
}

/// The root over hashes of leaves. Without any it is the hash of nothing.
pub fn root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => sha256(b""),
        [one] => *one,
        many => {
            let (left, right) = many.split_at(split(many.len()));
            node(&root(left), &root(right))
        }
    }
}

/// What proves that the leaf at a place is in the tree: the hashes beside its
/// way to the root, from the leaf on. Empty if there is no such place.
pub fn proof(leaves: &[Hash], at: usize) -> Vec<Hash> {
    if at >= leaves.len() || leaves.len() < 2 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let (mut path, beside) = match at.checked_sub(left.len()) {
        None => (proof(left, at), root(right)),
        Some(at) => (proof(right, at), root(left)),
    };
    path.push(beside);
    path
}

/// The root that a proof leads to, for a leaf at a place in a tree of so many.
/// `None` if the proof has not the length that it must have.
pub fn proven(leaf: &Hash, at: usize, leaves: usize, proof: &[Hash]) -> Option<Hash> {
    if at >= leaves {
        return None;
    }
    match (leaves, proof) {
        (1, []) => Some(*leaf),
        (1, _) | (_, []) => None,
        (_, [path @ .., beside]) => {
            let left = split(leaves);
            match at.checked_sub(left) {
                None => Some(node(&proven(leaf, at, left, path)?, beside)),
                Some(at) => Some(node(beside, &proven(leaf, at, leaves - left, path)?)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::evidence::hex;

    fn leaves(count: usize) -> Vec<Hash> {
        (0..count).map(|number| leaf(&number.to_be_bytes())).collect()
    }

    /// Values that others have published for this tree.
    #[test]
    fn the_tree_is_that_of_the_rfc() {
        assert_eq!(hex(&root(&[])), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(&leaf(b"")), "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
        let inputs: [&[u8]; 3] = [b"", b"\0", b"\x10"];
        let three: Vec<_> = inputs.iter().map(|bytes| leaf(bytes)).collect();
        assert_eq!(hex(&root(&three)), "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77");
    }

    #[test]
    fn a_leaf_is_no_node() {
        let two = leaves(2);
        let joined = [two[0], two[1]].concat();
        assert_ne!(root(&two), leaf(&joined));
    }

    proptest! {
        #[test]
        fn every_leaf_is_proven_and_nothing_else(count in 1_usize..70, at in 0_usize..70, other in 0_usize..70) {
            let all = leaves(count);
            let at = at % count;
            let path = proof(&all, at);
            prop_assert_eq!(proven(&all[at], at, count, &path), Some(root(&all)));
            // Another leaf, another place, a longer or a shorter proof lead elsewhere.
            let other = other % count;
            if other != at {
                prop_assert_ne!(proven(&all[other], at, count, &path), Some(root(&all)));
                prop_assert_ne!(proven(&all[at], other, count, &path), Some(root(&all)));
            }
            let longer = [path.as_slice(), &[all[at]]].concat();
            prop_assert_eq!(proven(&all[at], at, count, &longer), None);
            prop_assert_eq!(proven(&all[at], count, count, &path), None);
            if let Some((_, shorter)) = path.split_last() {
                prop_assert_eq!(proven(&all[at], at, count, shorter), None);
            }
        }

        #[test]
        fn a_changed_leaf_changes_the_root(count in 1_usize..70, at in 0_usize..70, bit in 0_usize..256) {
            let all = leaves(count);
            let mut changed = all.clone();
            changed[at % count][bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(root(&all), root(&changed));
            let mut path = proof(&all, at % count);
            let hashes = path.len();
            if hashes > 0 {
                path[at % hashes][bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(proven(&all[at % count], at % count, count, &path), Some(root(&all)));
            }
        }
    }
}
