// The instruction sets that the kernels are compiled for. Included before hwy/highway.h by every
// file that dispatches. AVX2 and AVX-512 do the work; the scalar fallback keeps
// the library correct anywhere. The others would add compile time and no speed to speak of.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
