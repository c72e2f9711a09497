// Files that are either the old ones or the new ones, whole, whatever happens in between: written
// beside the target, flushed to the disk, renamed over it, and the folder flushed.
//
// Every failure is an IoError naming the path and the system's reason; the old file is untouched
// then and the temporary one is removed. A process killed midway leaves `name.tmp-<pid>-<n>`.
//
// A symbolic link stays, the file that it leads to is replaced. A device, a pipe and an open file
// (/dev/null, /dev/stdout) cannot be replaced: they are written to, and promise no wholeness.
#pragma once

#include <filesystem>
#include <span>

#include "linescan/files/bytes.h"

namespace linescan {

void write_file_atomically(const std::filesystem::path& path, ByteSpan bytes);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// The parts one after the other, so that large data need not be copied into one buffer first.
void write_file_atomically(const std::filesystem::path& path, std::span<const ByteSpan> parts);

// Makes created, renamed and removed names in the folder durable.
void fsync_directory(const std::filesystem::path& directory);

// Lets `link` point to `target` (stored as given, so a bare name stays relative to the link's
// folder). An older link is replaced in one step: readers see the old one or the new one.
void replace_symlink(const std::filesystem::path& target, const std::filesystem::path& link);

}  // namespace linescan
