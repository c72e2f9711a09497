// The float32 sums over routes that a block keeps in shared memory, a number for each channel and
// place = row * BlockPlace::pitch + column of the block's tile.
#pragma once

#include "linescan/ops/ss2d/gpu_arguments.cuh"

namespace linescan {

inline constexpr int kSumChannels = 8;  // of a place, side by side

// Where channel `channel` (below kGpuChannels) of a place lies. Each half of the channels has a table
// of its own: the four lanes of gpu_sum_pitch then touch all banks.
__device__ __forceinline__ int sum_index(const BlockPlace& block, int place, int channel) {
  return ((channel / kSumChannels) * block.height * block.pitch + place) * kSumChannels +
         channel % kSumChannels;
}

constexpr int kPack = 8;  // channels that a thread moves at once

// The packs of kPack channels of a tile, spread over the threads of the block: neighbours have
// neighbouring channels.
struct SumPack {
  int64_t pixel;  // in the plane
  int place, channel;
  bool inside;

  __device__ __forceinline__ SumPack(const BlockPlace& place_of_block, int plane_width, int index) {
    constexpr int kPacks = kGpuChannels / kPack;
    const int number = index / kPacks, width = place_of_block.width;
    inside = number < place_of_block.height * width;
    // Exact below 2^32 / width; a tile has some thousand places.
    const int row =
        width == 1 ? number : static_cast<int>(__umulhi(number, 0xFFFFFFFFu / width + 1));
    const int column = number - row * width;
    channel = index % kPacks * kPack;
    place = row * place_of_block.pitch + column;
    pixel = (static_cast<int64_t>(place_of_block.top) + row) * plane_width + place_of_block.left +
            column;
  }
};
__device__ __forceinline__ int pack_count(const BlockPlace& place) {
  return place.height * place.width * (kGpuChannels / kPack);
}

// Whether kPack neighbouring channels of a tensor are aligned accesses of up to 16 bytes.
template <typename T>
__device__ __forceinline__ bool packable(const GpuPlanes<T>& planes, int channels) {
  return planes.channel == 1 && channels % kPack == 0 && planes.pixel % kPack == 0 &&
         planes.batch % kPack == 0 && reinterpret_cast<uintptr_t>(planes.data) % 16 == 0;
}

// D of a channel, of all routes: they see the same x.
template <typename T>
__device__ __forceinline__ float skip_of_routes(const Ss2dGpuArguments<T>& args, int channel) {
  float skip = 0;
  for (int k = 0; k < args.routes; ++k)
    skip += args.D[static_cast<int64_t>(k) * args.channels + channel];
  return skip;
}

// The sums begin as x times `scale` of each of the block's channels, a function of the channel.
template <typename T, class Scale>
__device__ __forceinline__ void start_sums(const GpuPlanes<const T>& from, int width, int channels,
                                           const BlockPlace& place, float* sums,
                                           const Scale& scale) {
  constexpr int kBatch = 4;  // loads under way at once
  const bool packed = packable(from, channels);
  const int first = place.group * kGpuChannels, count = pack_count(place);
  const T* data = from.data + place.image * from.batch + first * from.channel;
  // A thread's packs all have the same channels: blockDim.x is a multiple of the packs of a place.
  float factors[kPack];
  for (int i = 0; i < kPack; ++i) {
    const int channel = first + threadIdx.x % (kGpuChannels / kPack) * kPack + i;
    factors[i] = channel < channels ? scale(channel) : 0.0f;
  }
  for (int begin = threadIdx.x; begin < count; begin += kBatch * blockDim.x) {
    alignas(16) T values[kBatch][kPack];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const SumPack pack(place, width, begin + j * blockDim.x);
      const T* at = data + pack.pixel * from.pixel + pack.channel * from.channel;
      if (packed) {
        constexpr int kOnce = 16 / sizeof(T) < kPack ? 16 / sizeof(T) : kPack;
#pragma unroll
        for (int i = 0; i < kPack; i += kOnce)
          if (pack.inside && first + pack.channel < channels)
            *reinterpret_cast<Pack<T, kOnce>*>(values[j] + i) =
                *reinterpret_cast<const Pack<T, kOnce>*>(at + i);
      } else {
#pragma unroll
        for (int i = 0; i < kPack; ++i)
          if (pack.inside && first + pack.channel + i < channels)
            values[j][i] = at[i * from.channel];
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const SumPack pack(place, width, begin + j * blockDim.x);
      if (!pack.inside) continue;
      float products[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        products[i] = first + pack.channel + i < channels ? factors[i] * to_float(values[j][i]) : 0;
#pragma unroll
      for (int i = 0; i < kPack; i += 4)
        *reinterpret_cast<float4*>(sums + sum_index(place, pack.place, pack.channel + i)) =
            make_float4(products[i], products[i + 1], products[i + 2], products[i + 3]);
    }
  }
}

// Adds to the sums of channels 2g and 2g + 1 of one place, unless it is not `inside`.
__device__ __forceinline__ void add_to_sums(float* sums, const BlockPlace& block, int place, int g,
                                            bool inside, float first, float second) {
  auto* sum = reinterpret_cast<float2*>(sums + sum_index(block, place, 2 * g));
  float2 so_far = make_float2(0, 0);
  if (inside) so_far = *sum;  // one predicated access each, no branch
  so_far = make_float2(so_far.x + first, so_far.y + second);
  if (inside) *sum = so_far;
}

// Writes a tile's sums, converted, to `out`; all threads of the block take part, behind a barrier.
template <typename Out>
__device__ __forceinline__ void write_sums(const GpuPlanes<Out>& out, int width, int channels,
                                           const BlockPlace& place, const float* sums) {
  const bool packed = packable(out, channels);
  const int first = place.group * kGpuChannels, count = pack_count(place);
  Out* data = out.data + place.image * out.batch + first * out.channel;
  for (int index = threadIdx.x; index < count; index += blockDim.x) {
    const SumPack pack(place, width, index);
    if (first + pack.channel >= channels) continue;
    Out* at = data + pack.pixel * out.pixel + pack.channel * out.channel;
    alignas(16) Out values[kPack];
#pragma unroll
    for (int i = 0; i < kPack; i += 4) {
      const auto four =
          *reinterpret_cast<const float4*>(sums + sum_index(place, pack.place, pack.channel + i));
      values[i] = from_float<Out>(four.x);
      values[i + 1] = from_float<Out>(four.y);
      values[i + 2] = from_float<Out>(four.z);
      values[i + 3] = from_float<Out>(four.w);
    }
    if (packed) {
      constexpr int kOnce = 16 / sizeof(Out) < kPack ? 16 / sizeof(Out) : kPack;
#pragma unroll
      for (int i = 0; i < kPack; i += kOnce)
        *reinterpret_cast<Pack<Out, kOnce>*>(at + i) =
            *reinterpret_cast<const Pack<Out, kOnce>*>(values + i);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (first + pack.channel + i < channels) at[i * out.channel] = values[i];
    }
  }
}

}  // namespace linescan
