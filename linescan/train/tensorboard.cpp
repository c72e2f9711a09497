#include "linescan/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "linescan/base/error.h"

namespace linescan {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ (remainder & 1 ? kReversedPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

template <typename Unsigned>
void append_little_endian(std::string* out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(value); ++i)
    out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

// Protobuf's wire types; a field starts with (number << 3 | type).
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void append_key(std::string* out, uint64_t number, WireType type) {
  append_varint(out, number << 3 | type);
}

void append_bytes(std::string* out, uint64_t number, std::string_view bytes) {
  append_key(out, number, kBytes);
  append_varint(out, bytes.size());
  out->append(bytes);
}

// Fields of Event: 1 wall_time, 2 step, 3 file_version, 5 summary.
std::string start_event(double wall_time) {
  std::string event;
  append_key(&event, 1, kFixed64);
  append_little_endian(&event, std::bit_cast<uint64_t>(wall_time));
  return event;
}

// Field of Summary: 1 value, repeated. Fields of a value: 1 tag, 2 simple_value.
std::string encode_summary(std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes(&value, 1, scalar.tag);
    append_key(&value, 2, kFixed32);
    append_little_endian(&value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    append_bytes(&summary, 1, value);
  }
  return summary;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  for (char& c : name)
    if (c == '/') c = '_';
  return name;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t remainder = 0xFFFFFFFF;
  for (const char c : bytes)
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~remainder;
}

uint32_t masked_crc32c(std::string_view bytes) {
  constexpr uint32_t kMask = 0xA282EAD8;
  return std::rotr(crc32c(bytes), 15) + kMask;
}

EventWriter::EventWriter(const std::filesystem::path& folder, double wall_time) {
  const std::string name =
      fmt::format("events.out.tfevents.{:010}.{}", static_cast<int64_t>(wall_time), host_name());
  // Two sessions can start within a second: the later one takes the next free number.
  for (int number = 0;; ++number) {
    path_ = folder / (number == 0 ? name : fmt::format("{}.{}", name, number));
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file_ >= 0) break;
    if (errno != EEXIST)
      throw_error<IoError>("{}: cannot create: {}", path_.string(), std::strerror(errno));
  }
  std::string event = start_event(wall_time);
  append_bytes(&event, 3, "brain.Event:2");
  write_record(event);
}

EventWriter::EventWriter(const std::filesystem::path& folder) : EventWriter(folder, now()) {}

EventWriter::~EventWriter() {
  if (file_ >= 0) ::close(file_);
}

void EventWriter::add_scalars(int64_t step, std::span<const Scalar> scalars, double wall_time) {
  std::string event = start_event(wall_time);
  append_key(&event, 2, kVarint);
  append_varint(&event, static_cast<uint64_t>(step));
  append_bytes(&event, 5, encode_summary(scalars));
  write_record(event);
}

void EventWriter::add_scalars(int64_t step, std::span<const Scalar> scalars) {
  add_scalars(step, scalars, now());
}

void EventWriter::write_record(std::string_view payload) {
  std::string record;
  append_little_endian(&record, static_cast<uint64_t>(payload.size()));
  append_little_endian(&record, masked_crc32c(record));
  record.append(payload);
  append_little_endian(&record, masked_crc32c(payload));
  for (std::string_view rest = record; !rest.empty();) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw_error<IoError>("{}: cannot write: {}", path_.string(), std::strerror(errno));
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace linescan
