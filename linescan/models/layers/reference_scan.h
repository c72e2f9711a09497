// ss2d in the slower ways that its publication started from, for measuring what each step towards the
// fused operator brings, and as a second opinion on it: ordinary tensor operations around a scan.
//
//   fused    linescan::ss2d: one product for all routes, the plane walked in place
//   einsum   the projection as an einsum for each route; the plane still walked in place
//   copies   a permuted copy of the plane for every route, einsums, selective_scan, copies back, sums
//
// Liu et al. 2024, arXiv:2401.10166, section 4.3. All three give the same numbers up to rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "linescan/models/layers/scan_init.h"

namespace linescan {

enum class ScanPath { kFused, kEinsum, kCopies };

// "fused", "einsum", "copies"; throws InvalidArgument with the nearest name.
ScanPath parse_scan_path(std::string_view name);

// Shapes, routes and out_dtype as linescan::ss2d (binding/ss2d.h), differentiable like it. Routes that
// restart at every line cannot be copied into one sequence: throws Unsupported for them with kCopies.
at::Tensor ss2d_along(ScanPath path, const at::Tensor& x, const ScanParameters& parameters,
                      at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype);

}  // namespace linescan
