"""Who is this, and may it do that: what collect and serve both ask before they do anything for anybody."""
