// Random numbers as a pure function of a counter: the draw for (seed, epoch, index) never depends
// on how many draws came before it or on which thread asks, so a resumed run repeats them exactly.
#pragma once

#include <cstdint>

namespace linescan {

// What a draw is for; two streams with equal counters are unrelated.
enum class Stream : uint64_t {
  kShuffle = 1,
  kAugment = 2,
  kHoldOut = 3,
  kLimit = 4,
  kSequences = 5,
  kHeldOutSequences = 6,
  kTestSequences = 7
};

// A bijection of 64 bits in which every input bit flips about half of the output bits
// (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t counter_hash(Stream stream, uint64_t seed, uint64_t epoch, uint64_t index) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  uint64_t hash = mix_bits(static_cast<uint64_t>(stream) * kGolden + seed);
  hash = mix_bits(hash + kGolden + epoch);
  return mix_bits(hash + kGolden + index);
}

// A number in [0, count) from 32 random bits; count < 2^32. The bias is below count / 2^32.
constexpr int64_t bounded(uint32_t bits, int64_t count) {
  return static_cast<int64_t>((static_cast<uint64_t>(bits) * static_cast<uint64_t>(count)) >> 32);
}

}  // namespace linescan
