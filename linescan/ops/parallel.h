// How an operator asks its caller for threads. Operators own no threads: the binding passes
// at::parallel_for, tests pass loops of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace linescan {

// Calls body(begin, end) for disjoint ranges that together cover [0, count), in any order and on
// any threads, and returns when all are done.
using ParallelBody = std::function<void(int64_t begin, int64_t end)>;
// A type of its own, which headers can declare without <functional>.
struct ParallelFor : std::function<void(int64_t count, const ParallelBody& body)> {
  using function::function;
  ParallelFor(function other) : function(std::move(other)) {}  // NOLINT: conversion is wanted
};

// Everything on the calling thread.
inline void serial_for(int64_t count, const ParallelBody& body) {
  if (count > 0) body(0, count);
}

// Calls work(index) for every index in [0, count).
template <class Work>
void parallel_each(const ParallelFor& parallel_for, int64_t count, const Work& work) {
  parallel_for(count, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) work(index);
  });
}

}  // namespace linescan
