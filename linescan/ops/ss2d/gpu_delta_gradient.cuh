// Where the packed backward kernels leave the gradients of delta, B and C, and the products with them that make the
// gradients of the records and of dt_weight (delta_products.cu, delta_products_at_once.cu).
//
// On planes of several tiles records of up to kGpuOnChipNumbers numbers are multiplied on the chip instead, and so are as many dts
// of several states: of more the gradient from each group of channels would be more numbers than delta's is.
#pragma once

#include "linescan/ops/ss2d/gpu_arguments.cuh"
#include "linescan/ops/ss2d/gpu_products.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

template <typename T>
struct DeltaGradient {
  T* data;  // [routes, slots, pixels, kGpuChannels * groups]; channels that are not there are zero
  // [routes, groups, slots, pixels, 2 states]: gradients of B and C, sums over a group's channels; pairs of numbers
  uint32_t* factors;
  T* dts;  // [routes, groups, slots, pixels, rank], likewise, instead of `data`, which is null then
  int64_t slots;  // images of the launch
  int groups, pixels, states, rank;

  // `memory`: 16-byte aligned. multiplied: on the chip, of several states.
  DeltaGradient(const Ss2dGpuArguments<T>& args, void* memory, int64_t slots, bool multiplied)
      : data(multiplied ? nullptr : static_cast<T*>(memory)),
        slots(slots),
        groups(args.channel_groups),
        pixels(args.height * args.width),
        states(args.states),
        rank(args.rank) {
    const int64_t numbers = multiplied ? 0 : args.routes * slots * pixels * channels();
    factors = reinterpret_cast<uint32_t*>(static_cast<T*>(memory) + numbers);
    dts = reinterpret_cast<T*>(factors + args.routes * groups * slots * pixels * states);
  }
  DeltaGradient() = default;

  __host__ __device__ int64_t channels() const { return int64_t{groups} * kGpuChannels; }
  // Of a block's image and channels on route k, at pixel 0.
  __device__ __forceinline__ T* of_block(const BlockPlace& place, int k) const {
    return data + ((k * slots + place.slot) * pixels) * channels() + place.group * kGpuChannels;
  }
  __device__ __forceinline__ uint32_t* factors_of_block(const BlockPlace& place, int k) const {
    return factors + of_group(place, k) * states;
  }
  __device__ __forceinline__ T* dts_of_block(const BlockPlace& place, int k) const {
    return dts + of_group(place, k) * rank;
  }

 private:
  // Pixels before those of a block's image, of its group on route k.
  __device__ __forceinline__ int64_t of_group(const BlockPlace& place, int k) const {
    return ((static_cast<int64_t>(k) * groups + place.group) * slots + place.slot) * pixels;
  }
};

// Of the images from args.first_image on: gprojection (with several states, but for B and C), and `parts` sums for the gradient of dt_weight,
// [parts, routes, channels, rank], which are stored or, of later slices, added to those before. products: the plan's.
template <typename T>
void multiply_delta_gradient(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                             const GpuProducts& products, int64_t parts, T* gprojection,
                             float* weight_sums, GpuStream stream);
// delta_products_at_once.cu: the same, if the plan says `at_once`.
template <typename T>
void multiply_delta_gradient_at_once(const Ss2dGpuArguments<T>& args,
                                     const DeltaGradient<T>& gradient, const GpuProducts& products,
                                     int64_t parts, T* gprojection, float* weight_sums,
                                     GpuStream stream);
// backward_sums.cu: B and C in gprojection, of several states, and dts where they are.
template <typename T>
void sum_factors(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient, T* gprojection,
                 GpuStream stream);

}  // namespace linescan
