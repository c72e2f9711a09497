// Scalars over time as TensorBoard reads them: one events.out.tfevents.<time>.<host> file a session
// of training. A resumed run starts a new file in the same folder; TensorBoard joins them.
//
// The file is a TFRecord stream (length, masked CRC-32C of the length, payload, masked CRC-32C of
// the payload; all little endian) whose payloads are protobuf messages of type Event. The handful
// of fields needed is encoded here by hand, so that no protobuf library is required.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace linescan {

struct Scalar {
  std::string_view tag;  // "train/loss": the part before the slash groups the charts
  double value = 0;      // kept as float32, as TensorBoard does
};

class EventWriter {
 public:
  // Creates a new file in `folder`, which must exist. `wall_time` is in seconds since 1970.
  // Throws IoError.
  EventWriter(const std::filesystem::path& folder, double wall_time);
  explicit EventWriter(const std::filesystem::path& folder);  // the time is now
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // One record with all the values, handed to the system before returning. Throws IoError.
  void add_scalars(int64_t step, std::span<const Scalar> scalars, double wall_time);
  void add_scalars(int64_t step, std::span<const Scalar> scalars);  // the time is now

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(std::string_view payload);

  std::filesystem::path path_;
  int file_ = -1;
};

// CRC-32C (Castagnoli), and the form in which TFRecord stores it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace linescan
