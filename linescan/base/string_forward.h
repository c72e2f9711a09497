// std::string as far as declarations need it; who calls them includes <string>. What the kernels' files include is read
// three times, and <string> alone takes as long as everything else.
#pragma once

#include <iosfwd>
