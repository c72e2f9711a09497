// std::string as far as declarations need it; who calls them includes <string>. What the kernels' files include is read
// twice, for the host and for the device, and <string> alone takes as long as everything else.
#pragma once

#include <iosfwd>
