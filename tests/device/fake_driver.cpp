// A libcuda.so.1 for tests, compiled once for each thing that can be the matter with a driver.

#include <cstddef>
#include <cstdio>
#include <map>

namespace {
constexpr int kSuccess = 0, kInvalidValue = 1, kNoDevice = 100, kUnknown = 999;
}

extern "C" {

int cuInit(unsigned) {
#if defined(LINESCAN_DRIVER_NO_DEVICE)
  return kNoDevice;
#elif defined(LINESCAN_DRIVER_BROKEN)
  return kUnknown;
#else
  return kSuccess;
#endif
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 10;  // a handle, not the number
  return kSuccess;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Test GPU %d", device - 10);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{80} << 30;
  return kSuccess;
}

#if !defined(LINESCAN_DRIVER_OLD)
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  // The numbers of cuda.h, for a device like an H100 and, second, one of capability 12.0.
  const std::map<int, int> first = {{13, 1980000},  {16, 132},   {36, 2619000}, {37, 5120},
                                    {38, 52428800}, {39, 2048},  {75, 9},       {76, 0},
                                    {81, 233472},   {82, 65536}, {97, 232448},  {106, 32}};
  const std::map<int, int> second = {{13, 2400000},   {16, 170},   {36, 14001000}, {37, 512},
                                     {38, 100663296}, {39, 1536},  {75, 12},       {76, 0},
                                     {81, 102400},    {82, 65536}, {97, 101376},   {106, 24}};
  const std::map<int, int>& attributes = device == 10 ? first : second;
  const auto found = attributes.find(attribute);
  if (found == attributes.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}
#endif

int cuGetErrorName(int error, const char** name) {
  if (error != kUnknown) return kInvalidValue;
  *name = "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}

}  // extern "C"
