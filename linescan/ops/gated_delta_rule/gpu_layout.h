// What lies where in the kernels' shared memory, and the sizes that follow from it: known to the plans,
// which ask for that much, and to the kernels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace linescan {

// K as the kernels are compiled for it; what is smaller is padded with zeros.
constexpr int64_t delta_padded_keys(int64_t K) {
  return K <= 32 ? 32 : K <= 64 ? 64 : K <= 128 ? 128 : K <= 256 ? 256 : 512;
}

inline constexpr int64_t kLargestGrid = (int64_t{1} << 31) - 1;  // blocks; kernels go round

// Warps of a scan's block at most: their registers fill a multiprocessor.
inline constexpr int kDeltaScanWarps = 8;

// Numbers beside the matrices of a chunk's record, one row of `chunk` floats each.
inline constexpr int kDeltaRecordRows = 8;

// For numbers of that many bytes and that many (padded) keys. Strides in numbers, so that eight
// neighbouring rows lie on different banks; sizes in bytes.
struct DeltaLayout {
  int number_bytes, keys;
  bool deep = false;  // many keys, in scans of warp groups: chunks are longer

  // Tokens of a chunk: what 99 KiB (deep: 227 KiB) and the registers have room for.
  constexpr int chunk() const {
    if (deep) return kPanel;
    if (keys == 512) return 16;
    if (number_bytes == 4) return keys == 256 ? 16 : 32;
    return keys == 32 || keys == 256 ? 32 : 64;
  }
  constexpr int key_stride() const { return keys + 8; }
  constexpr int square_stride() const { return chunk() + 8; }
  constexpr int64_t key_tile_bytes() const {
    return int64_t{1} * chunk() * key_stride() * number_bytes;
  }
  constexpr int64_t square_bytes() const {
    return int64_t{1} * chunk() * square_stride() * number_bytes;
  }
  constexpr int64_t rows_bytes() const { return kDeltaRecordRows * chunk() * 4; }

  // In the workspace: A and P, then the rows. P is as large as the corrections of chunk() columns of V.
  constexpr int64_t record_bytes() const {
    return int64_t{2} * chunk() * chunk() * number_bytes + rows_bytes();
  }

  // DeltaDecays in gpu_record.cuh, RecordDecays in gpu_record_pairs.cuh.
  constexpr int64_t decays_bytes() const {
    return (4 * (int64_t{19} * chunk() + chunk() / 16 * (chunk() / 16)) + 15) / 16 * 16;
  }
  constexpr int64_t record_decays_bytes() const { return int64_t{4} * 12 * chunk(); }
  // The records' kernel: tiles of k and q, later L, in float32, and P and A on their way out; decays; six rows.
  constexpr int64_t records_bytes() const {
    return std::max(2 * key_tile_bytes(),
                    int64_t{1} * chunk() * square_stride() * 4 + 2 * square_bytes()) +
           record_decays_bytes() + int64_t{6} * chunk() * 4;
  }

  // Blocks of a multiprocessor that the records' kernel is compiled for.
  constexpr int record_blocks() const { return deep ? 3 : 4; }

  // Scans. A warp keeps [16 of V, scan_keys] of the state in registers.
  constexpr int scan_keys() const { return std::min(keys, 128); }
  constexpr int key_warps() const { return keys / scan_keys(); }
  constexpr int value_stride(int column_warps) const { return 16 * column_warps + 8; }
  // A stage: tiles of k, q and v (or what stands in for v), A, P and the record's rows. The scan that
  // prepares a backward pass needs neither q nor P.
  constexpr int64_t stage_bytes(int column_warps, bool outputs) const {
    return (outputs ? 2 : 1) * (key_tile_bytes() + square_bytes()) + rows_bytes() +
           int64_t{1} * chunk() * value_stride(column_warps) * number_bytes;
  }
  // Partial sums over K of [16, chunk] a warp.
  constexpr int64_t exchange_bytes(int column_warps) const {
    return key_warps() == 1 ? 0 : int64_t{1} * key_warps() * column_warps * 16 * chunk() * 4;
  }
  constexpr int64_t scan_bytes(int column_warps, int stages, bool outputs) const {
    return stages * stage_bytes(column_warps, outputs) + exchange_bytes(column_warps);
  }

  // The gradients' kernel: a warp owns 16 tokens and gradient_keys of K (not all, for the registers' sake), and goes along V in slices.
  constexpr int gradient_keys() const { return std::min(keys / 2, 64); }
  constexpr int gradient_key_warps() const { return keys / gradient_keys(); }
  constexpr int gradient_threads() const { return chunk() / 16 * gradient_key_warps() * 32; }
  constexpr int slice() const { return keys <= 256 && number_bytes == 2 ? 32 : 16; }
  constexpr int slice_stride() const { return slice() + 8; }
  // A stage: slices of two states and of three tiles of tokens.
  constexpr int64_t gradient_stage_bytes() const {
    return int64_t{2} * slice() * key_stride() * number_bytes +
           int64_t{3} * chunk() * slice_stride() * number_bytes;
  }
  // M, and what passes over tokens, in float32; where there is one stage only, in its memory.
  constexpr int64_t pairs_bytes() const {
    return square_bytes() + int64_t{4} * chunk() * (chunk() + 1);
  }
  // k and q; H; stages and pairs; then floats: decays, the records' rows of two value heads and half as
  // many of the kernel's own, four partial sums for every token and warp along K.
  constexpr int64_t gradients_bytes(int stages) const {
    return 2 * key_tile_bytes() + square_bytes() +
           (stages == 1 ? std::max(gradient_stage_bytes(), pairs_bytes())
                        : stages * gradient_stage_bytes() + pairs_bytes()) +
           decays_bytes() + 3 * rows_bytes() + int64_t{16} * chunk() * gradient_key_warps();
  }

  // The gradients' kernel of warp groups, for half types: two groups, each with all tokens and half of the
  // keys, two warps that move tiles and two that finish gates. Tiles in panels (device_code/group_product.cuh); V goes by in slices
  // of a panel.
  static constexpr int kGroupThreads = 256, kGroupMovers = 64, kGroupFinishers = 64;
  static constexpr int kGroupStages = 2, kPanel = 64;
  // Keys that it has at once; of more it takes one half after the other.
  constexpr int group_keys() const { return std::min(keys, 128); }
  constexpr bool has_groups() const {
    return number_bytes == 2 && chunk() == kPanel && keys % kPanel == 0;
  }
  constexpr int64_t group_panel_bytes() const {
    return int64_t{1} * kPanel * kPanel * number_bytes;
  }
  // Slices of two states and of four tiles of tokens.
  constexpr int64_t group_stage_bytes() const {
    return (2 * group_keys() / kPanel + 4) * group_panel_bytes();
  }
  // k and q, H and M, stages; then floats: decays, the records' rows of three value heads and as many of the
  // kernel's own; x . gy and x . x of q and k; what passes over tokens, of eight rows of every warp of
  // either group; where v of each stage, q and k go; where copies arrive, of stages and of keys.
  static constexpr int kGroupOverStride = kPanel + 8, kGroupNormRows = 4, kGroupRecords = 3;
  static constexpr int kGroupParcels = kGroupStages + 2, kGroupParcelBytes = 48;
  constexpr int64_t group_gradients_bytes() const {
    return (2 * group_keys() / kPanel + 2) * group_panel_bytes() +
           kGroupStages * group_stage_bytes() + int64_t{4} * chunk() * kGroupOverStride +
           decays_bytes() + (kGroupRecords + 1) * rows_bytes() +
           int64_t{4} * kGroupNormRows * chunk() + kGroupParcels * kGroupParcelBytes +
           8 * (kGroupStages + 1);
  }
  // A block's slot in the workspace, where keys come in parts: of every value head the gradients of gates and beta,
  // [2, tokens]; gq and gk of all parts but the last, [tokens, keys].
  constexpr int64_t group_slot_floats(int64_t value_heads) const {
    return value_heads * 2 * kPanel + int64_t{2} * kPanel * (keys - group_keys());
  }

  // Scans of warp groups: one that carries the states of 64 columns of V, one that moves data, and between them, in a forward
  // pass, one that computes outputs. A stage is k, q, A, P, v and the record's rows; behind the stages is what two chunks
  // leave, states and tokens, and where copies arrive.
  static constexpr int kGroupScanThreads = 256, kGroupOutputThreads = 384;
  static constexpr int kMostGroupScanStages = 3;
  constexpr int64_t group_scan_stage_bytes(bool outputs) const {
    return ((outputs ? 2 : 1) * (keys / kPanel + 1) + 1) * group_panel_bytes() + rows_bytes();
  }
  constexpr int64_t group_scan_bytes(int stages, bool outputs) const {
    return stages * group_scan_stage_bytes(outputs) +
           2 * (keys / kPanel + 1) * group_panel_bytes() + 8 * kMostGroupScanStages;
  }
  // Of those, walks of segments alone, which leave nothing of a chunk: two blocks find a multiprocessor.
  constexpr int64_t group_ends_bytes(int stages) const {
    return stages * group_scan_stage_bytes(false) + 8 * kMostGroupScanStages;
  }
  // Those that make records themselves: two groups carry the states of 128 columns, and leave outputs where v was; one makes A and
  // rows of a record, one everything else, and moves data. Stages of k, q and v; records of two chunks; L; of two chunks decays, gates,
  // betas and factors of norms; where copies arrive; of several walks in turn, where tokens come from and go to; what is kept for a
  // backward pass, on its way.
  static constexpr int kRecordingThreads = 512, kRecordingStages = 3;
  static constexpr int kRecordingWays = 4, kRecordingWaysBytes = 224;
  constexpr int64_t recording_stage_bytes() const {
    return (2 * keys / kPanel + 2) * group_panel_bytes();
  }
  constexpr int64_t recording_scan_bytes() const {
    return kRecordingStages * recording_stage_bytes() + 2 * record_bytes() +
           int64_t{4} * chunk() * square_stride() +
           2 * (record_decays_bytes() + int64_t{4} * 4 * chunk()) + 8 * (kRecordingStages + 1) +
           kRecordingWays * kRecordingWaysBytes + 2 * group_panel_bytes();
  }

  // Whole sequences by single warps, for half types: tiles of k, v, q, in a backward pass also go, and what is kept of a
  // chunk, S and A; then rows of floats (SequenceRow in gpu_sequence.cuh).
  static constexpr int kSequenceTokens = 16, kSequenceWidth = 32;
  static constexpr int kSequenceWarps = 4;  // of a block
  static constexpr int kSequenceRows = 12;
  static constexpr int64_t kSequenceKeptBytes =
      2 * (kSequenceWidth * kSequenceWidth + kSequenceTokens * kSequenceTokens);
  static constexpr int64_t sequence_stage_bytes(bool backward) {
    return (backward ? 4 : 3) * kSequenceTokens * kSequenceWidth * 2 +
           (backward ? kSequenceKeptBytes : 0);
  }
  static constexpr int64_t sequence_warp_bytes(bool backward) {
    return 2 * sequence_stage_bytes(backward) + kSequenceRows * kSequenceTokens * 4;
  }

  // Scans of warp groups with many keys: two groups carry the states of 128 columns. k, P and the record's rows of two chunks; v
  // and A, and q, of one; the rounded states, and tokens on their way out; where copies arrive, and the block's number.
  static constexpr int kDeepKeys = 256, kDeepScanThreads = 384, kDeepArrivals = 4;
  constexpr int64_t deep_keys_bytes(bool queries) const {
    return (keys / kPanel + (queries ? 1 : 0)) * group_panel_bytes() + rows_bytes();
  }
  constexpr int64_t deep_scan_bytes(bool queries) const {
    return 2 * deep_keys_bytes(queries) +
           (3 + (queries ? keys / kPanel : 0) + 2 * (keys / kPanel + 1)) * group_panel_bytes() +
           8 * (kDeepArrivals + 1);
  }
  // What the blocks that share walks tell each other: a state, in float32; signals.
  constexpr int64_t deep_handover_bytes() const { return int64_t{2} * kPanel * keys * 4; }
  static constexpr int64_t deep_signals_bytes(int64_t blocks) { return 4 * (1 + 2 * blocks); }

  // The chain of segments: eight columns of V a block; those of the state in front, and of every warp's part of the
  // product with a transition.
  static constexpr int kChainThreads = 256, kChainColumns = 8;
  constexpr int64_t chain_bytes() const {
    const int term_warps = kChainThreads / 32 / std::max(keys / 128, 1);
    return int64_t{4} * (1 + term_warps) * keys * kChainColumns;
  }

  // The recurrence: 32 columns of V a block, a column a lane; warps share the rows of the state.
  constexpr int recurrence_rows() const {
    return keys <= 32 ? 8 : keys == 64 ? 16 : keys <= 256 ? 32 : 64;
  }
  constexpr int recurrence_warps() const { return keys / recurrence_rows(); }
};

}  // namespace linescan
